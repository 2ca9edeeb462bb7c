"""What a rank holds after loading, class by class, against tensors that the engine built."""

from dataclasses import replace

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import Deployment

V3, QWEN_FP8 = "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B-FP8"


@pytest.mark.parametrize(
    ("model", "chip", "ranks", "name", "total"),
    [
        # vllm 0.33.0 on Hopper: a scale of 4 bytes for each block of 128 x 128
        (V3, "h200", 8, "layers.attention.query_latent_down.scale", 232_288),  # the last block of rows is half full
        (V3, "h200", 8, "layers.attention.query_up.scale", 70_272),
        (V3, "h200", 8, "layers.shared_experts.down.scale", 25_984),
        (V3, "h200", 8, "layers.attention.output.scale", 218_624),
        # 61 layers of 16 heads: copies beside the quantized projection
        (V3, "h200", 8, "layers.attention.absorbed", 255_852_544),
        # vllm 0.33.0 on B200: a block's scale repeated for each row, four in a word
        (V3, "b200", 8, "layers.attention.query_latent_down.scale", 7_214_592),  # 14 x 2,112 words
        (V3, "b200", 8, "layers.mlp.down.scale", 430_080),  # 18 blocks of columns in 5 words
        (V3, "b200", 8, "layers.shared_experts.down.scale", 1_662_976),  # 2 in one word
        (QWEN_FP8, "b200", 2, "layers.mlp.down.scale", 32_768_000),  # 25 x 5,120 words
    ],
)
def test_a_class_of_tensors_is_as_large_as_the_engine_made_it(model, chip, ranks, name, total):
    p = plan(load_model(model), Deployment(chip=chip, tensor_parallel_size=ranks))
    assert sum(held.bytes for held in p.ranks[0].held if held.name == name) == total


def test_replicas_of_experts_are_a_line_of_their_own():
    asked = Deployment(chip="h200", tensor_parallel_size=8, enable_expert_parallel=True)
    off = plan(load_model(V3), asked)
    on = plan(load_model(V3), replace(asked, enable_eplb=True, num_redundant_experts=8))
    # one expert more a layer: three matrices of 2,048 x 7,168 in fp8, and a scale of 4 bytes for 128 x 128 of each
    assert on.eplb_bytes == 58 * 3 * (2048 * 7168 + 16 * 56 * 4)
    assert on.weights_bytes == off.weights_bytes
    assert on.fixed_bytes - off.fixed_bytes == on.eplb_bytes
