"""What vLLM makes of a deployment: its defaults by chip and usage, its changes, its block sizes."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.engines.release import load_engine
from capplan.engines.vllm import resolve
from capplan.engines.vllm.estimates import captured_tokens
from capplan.engines.vllm.hold import stage_layers
from capplan.hub import load_model
from capplan.registry import load_chip
from capplan.settings.deployment import Deployment

ENGINE = load_engine("vllm-0.33.0")
LLAMA = "meta-llama/Meta-Llama-3.1-8B"


def resolved(name=LLAMA, overrides=None, **settings):
    asked = Deployment(**settings)
    return resolve(load_model(name, overrides=overrides), asked, load_chip(asked.chip), ENGINE)


def fields(findings):
    return {finding.field: finding.happens for finding in findings}


@pytest.mark.parametrize(
    ("chip", "usage", "tokens", "seqs"),
    [
        # vllm 0.33.0, EngineArgs.get_batch_defaults, and its answers on H100, H200, B200, A100, L40S and L4
        ("h100-sxm", "openai-api-server", 8192, 1024),
        ("h100-sxm", "llm-class", 16_384, 1024),
        ("h200", "openai-api-server", 8192, 1024),
        ("h20", "openai-api-server", 8192, 1024),
        ("rtx-pro-6000", "openai-api-server", 8192, 1024),
        ("b200", "openai-api-server", 16_384, 1024),
        ("b200", "llm-class", 16_384, 1024),
        ("b300", "openai-api-server", 16_384, 1024),
        ("gb200", "openai-api-server", 16_384, 1024),
        # an A100 has 80 GB and not the large defaults; so has a DGX Spark more memory and not them
        ("a100-80gb", "openai-api-server", 2048, 256),
        ("a100-80gb", "llm-class", 8192, 256),
        ("dgx-spark", "openai-api-server", 2048, 256),
        ("dgx-spark", "llm-class", 8192, 256),
        ("l4", "openai-api-server", 2048, 256),
        ("l4", "llm-class", 8192, 256),
        ("l40s", "openai-api-server", 2048, 256),
        ("t4", "openai-api-server", 2048, 256),
    ],
)
def test_steps_follow_the_chip_and_who_starts_the_engine(chip, usage, tokens, seqs):
    r = resolved(chip=chip, usage_context=usage)
    assert (r.d.max_num_batched_tokens, r.d.max_num_seqs) == (tokens, seqs)
    assert {"max_num_batched_tokens", "max_num_seqs"} <= fields(r.assumed).keys()


@pytest.mark.parametrize(
    ("settings", "tokens", "seqs"),
    [
        ({"max_num_seqs": 2, "max_model_len": 1024}, 2048, 2),
        ({"max_num_seqs": 8, "max_model_len": 1024}, 8192, 8),
        ({"max_num_seqs": 9, "max_model_len": 1024}, 8192, 9),
        ({"max_model_len": 4}, 4096, 1024),
        ({"max_model_len": 1}, 1024, 1024),
        ({"max_num_batched_tokens": 512}, 512, 512),
        ({"max_num_batched_tokens": 1024}, 1024, 1024),
        ({"max_num_batched_tokens": 1025}, 1025, 1024),
        ({"max_num_batched_tokens": 100, "max_num_seqs": 50}, 100, 50),
        ({"performance_mode": "throughput"}, 16_384, 2048),
        ({"performance_mode": "throughput", "max_num_seqs": 64}, 16_384, 64),
        ({"performance_mode": "throughput", "max_num_batched_tokens": 1000}, 1000, 1000),
        ({"performance_mode": "balanced"}, 8192, 1024),
        ({"performance_mode": "interactivity"}, 8192, 1024),
    ],
)
def test_defaults_are_capped_by_each_other_and_doubled_for_throughput(settings, tokens, seqs):
    # vllm 0.33.0, EngineArgs: tokens by requests times length, then requests by tokens, only what was not said
    r = resolved(**settings)
    assert (r.d.max_num_batched_tokens, r.d.max_num_seqs) == (tokens, seqs)
    supplied = {"max_num_batched_tokens", "max_num_seqs"} - settings.keys()
    assert supplied == {"max_num_batched_tokens", "max_num_seqs"} & fields(r.assumed).keys()


@pytest.mark.parametrize(
    ("name", "chip", "dtype", "changed"),
    [
        # vllm 0.33.0, config/model.py, _resolve_auto_dtype: 7.5 has no bfloat16; Gemma is unstable in float16
        (LLAMA, "h100-sxm", "bfloat16", False),
        (LLAMA, "t4", "float16", True),
        ("meta-llama/Llama-2-7b-hf", "t4", "float16", False),
        ("google/gemma-2-9b-it", "t4", "float32", True),
        ("google/gemma-3-1b-it", "t4", "float32", True),
        ("google/gemma-2-9b-it", "l4", "bfloat16", False),
    ],
)
def test_a_checkpoint_is_served_in_a_format_that_the_chip_has(name, chip, dtype, changed):
    for asked in (None, "auto"):
        r = resolved(name, chip=chip, dtype=asked)
        assert r.d.dtype == dtype
        assert ("dtype" in fields(r.overridden)) == changed
        assert r.refused == ()


def test_a_checkpoint_in_32_bits_is_served_in_16():
    assert resolved(overrides={"torch_dtype": "float32"}).d.dtype == "bfloat16"
    assert resolved(overrides={"torch_dtype": "float32"}, chip="t4").d.dtype == "float16"
    assert [resolved(dtype=word).d.dtype for word in ("half", "float", "bfloat16")] == [
        "float16",
        "float32",
        "bfloat16",
    ]


@pytest.mark.parametrize(
    ("name", "chip", "kv_cache_dtype", "block"),
    [
        # vllm 0.33.0: block sizes as it resolved them on H100, B200 and A100; the others by its list of kernels
        (LLAMA, "h100-sxm", None, 16),
        (LLAMA, "h100-sxm", "fp8", 16),
        (LLAMA, "b200", None, 16),
        (LLAMA, "l4", "fp8", 16),
        (LLAMA, "t4", None, 16),
        ("deepseek-ai/DeepSeek-V2-Lite", "h100-sxm", None, 16),
        ("deepseek-ai/DeepSeek-V2-Lite", "h100-sxm", "fp8", 64),
        ("deepseek-ai/DeepSeek-V2-Lite", "b200", None, 32),
        ("deepseek-ai/DeepSeek-V2-Lite", "b200", "fp8", 32),
        ("deepseek-ai/DeepSeek-V2-Lite", "a100-80gb", None, 16),
        ("deepseek-ai/DeepSeek-V2-Lite", "rtx-5090", None, 16),
    ],
)
def test_a_block_has_the_size_that_its_kernel_takes(name, chip, kv_cache_dtype, block):
    r = resolved(name, chip=chip, kv_cache_dtype=kv_cache_dtype)
    assert r.refused == ()
    assert r.d.block_size == block
    assert fields(r.assumed)["block_size"] == str(block)


def test_deepseek_v3_has_the_blocks_of_its_latent_kernels():
    # vllm 0.33.0: FlashAttention-MLA, FlashMLA and FlashInfer-MLA
    asked = [("h100-sxm", 16, None), ("h100-sxm", 16, "fp8"), ("b200", 8, None)]
    blocks = [
        resolved("deepseek-ai/DeepSeek-V3", chip=chip, tensor_parallel_size=t, kv_cache_dtype=kv).d.block_size
        for chip, t, kv in asked
    ]
    assert blocks == [16, 64, 32]


def test_a_block_size_that_was_asked_for_stays():
    r = resolved(block_size=64)
    assert r.d.block_size == 64
    assert "block_size" not in fields(r.assumed)


def test_what_nobody_said_is_supplied_and_listed():
    r = resolved()
    assert fields(r.assumed) == {
        "max_model_len": "131,072",
        "max_num_batched_tokens": "8,192",
        "max_num_seqs": "1,024",
        "enable_prefix_caching": "on",
        "async_scheduling": "on",
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "gpu_memory_utilization": "0.92",
        "block_size": "16",
        "kv_cache_dtype": "auto (bfloat16)",
    }
    assert all(finding.asked is None and finding.why and finding.source for finding in r.assumed)
    assert (r.refused, r.overridden) == ((), ())


def test_what_was_said_is_not_supplied():
    said = {
        "max_model_len": 4096,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "cudagraph_mode": "PIECEWISE",
        "gpu_memory_utilization": 0.8,
        "block_size": 32,
        "kv_cache_dtype": "fp8",
        "dtype": "float16",
        "tokens": 1000,
    }
    r = resolved(**said)
    assert r.assumed == r.overridden == r.refused == ()
    assert r.d == Deployment(**said)


def test_eager_mode_captures_no_graphs():
    assert resolved(enforce_eager=True).d.cudagraph_mode == "NONE"
    r = resolved(enforce_eager=True, cudagraph_mode="FULL")
    assert (r.d.cudagraph_mode, fields(r.overridden)) == ("NONE", {"cudagraph_mode": "NONE"})


def test_a_stated_cache_leaves_utilization_without_effect():
    r = resolved(kv_cache_memory_bytes=1 << 33, gpu_memory_utilization=0.5)
    assert fields(r.overridden) == {"gpu_memory_utilization": "ignored"}
    assert "gpu_memory_utilization" not in fields(resolved(kv_cache_memory_bytes=1 << 33).assumed)


def test_the_models_class_stands_among_the_assumptions():
    assert "tie_word_embeddings" in fields(resolved("google/gemma-2-9b-it").assumed)


def test_a_chip_without_kernels_in_the_package_says_what_it_assumes():
    r = resolved(chip="mi300x")
    assert r.refused == ()
    assert "attention_backend" in fields(r.assumed)


def test_defaults_of_many_are_the_defaults_of_each():
    lengths = [1, 4, 8, 1024, 131_072]
    many = resolved(max_model_len=np.array(lengths))
    each = [resolved(max_model_len=length).d for length in lengths]
    for name in ("max_num_batched_tokens", "max_num_seqs", "tokens"):
        value = np.broadcast_to(getattr(many.d, name), len(lengths)).tolist()
        assert value == [getattr(d, name) for d in each], name


@pytest.mark.parametrize(
    ("chip", "seqs", "tokens", "captured"),
    [
        # vllm 0.33.0: max_cudagraph_capture_size of 512 on H100; 1,024 on data-centre Blackwell
        ("h100-sxm", 1024, 8192, 512),
        ("h200", 256, 8192, 512),
        ("h200", 128, 8192, 256),
        ("b200", 1024, 16_384, 1024),
        ("h100-sxm", 8, 8192, 16),
        # lowered to a size on the grid 1, 2, 4, 8, 16 ... 256, 272 ...
        ("h100-sxm", 1, 8192, 2),
        ("h100-sxm", 3, 8192, 4),
        ("h100-sxm", 4, 8192, 8),
        ("h100-sxm", 9, 8192, 16),
        ("h100-sxm", 127, 8192, 248),
        ("h100-sxm", 135, 8192, 256),
        ("h100-sxm", 136, 8192, 272),
    ],
)
def test_the_largest_captured_step_is_on_the_engines_grid(chip, seqs, tokens, captured):
    d = Deployment(max_num_seqs=seqs, max_num_batched_tokens=tokens)
    assert captured_tokens(d, load_chip(chip), ENGINE) == captured
    many = replace(d, max_num_seqs=np.array([seqs, 1024]))
    assert captured_tokens(many, load_chip(chip), ENGINE).tolist()[0] == captured
    assert captured_tokens(replace(d, max_cudagraph_capture_size=7), load_chip(chip), ENGINE) == 7


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        # vllm 0.33.0, get_pp_indices: what is left over goes to the stages just before the last
        (32, 1, [32]),
        (32, 2, [16, 16]),
        (32, 3, [11, 11, 10]),  # Llama-3.1-8B
        (36, 8, [4, 4, 4, 5, 5, 5, 5, 4]),  # Qwen3-8B
        (7, 4, [2, 2, 2, 1]),
        (5, 5, [1, 1, 1, 1, 1]),
    ],
)
def test_stages_share_the_layers_and_the_last_has_no_more_than_the_others(layers, stages, sizes):
    parts = [stage_layers(layers, stages, stage) for stage in range(stages)]
    assert [len(part) for part in parts] == sizes
    assert [layer for part in parts for layer in part] == list(range(layers))
