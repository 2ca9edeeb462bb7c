"""The buffers of a sparse latent model against the kernel's page and the engine's code."""

import pytest

from capplan.laws.buffers import (
    attention_lane_bytes,
    choices_bytes,
    drafter_lane_bytes,
    drafter_states_bytes,
    index_lane_bytes,
    lane_bytes,
)

ATTENTION = {
    "window": 128,
    "prefill_chunk": 4,
    "head_dim": 512,
    "index_topk": 512,
    "act_bits": 16,
    "lane_alignment": 256,
}
INDEX = {"tokens_per_record": 1, "index_key_bytes": 128, "index_scale_bytes": 4, "lane_alignment": 256}


@pytest.mark.parametrize(
    ("length", "tokens", "attention", "index", "drafter"),
    [
        # BLIS latency kernel, the Memory page: the two deployments of DeepSeek-V4.1-Flash
        (1_048_576, 32_768, 4_513_726_464, 5_536_481_280, 151_650_304),
        (131_072, 8192, 591_953_920, 692_060_160, 38_305_792),
    ],
)
def test_lanes_of_deepseek_v4_1_flash(length, tokens, attention, index, drafter):
    step = {"max_model_len": length, "max_num_batched_tokens": tokens}
    assert attention_lane_bytes(tokens_per_record=1, **step, **ATTENTION) == attention
    assert index_lane_bytes(max_model_len=length, gather_factor=40, **INDEX) == index
    assert lane_bytes(one=attention, other=index) == index
    lane = {key: ATTENTION[key] for key in ("window", "prefill_chunk", "head_dim", "act_bits", "lane_alignment")}
    assert drafter_lane_bytes(max_num_batched_tokens=tokens, **lane) == drafter


def test_beyond_256k_the_engine_gathers_fewer_and_attention_is_the_larger():
    # vllm 0.33.0, sparse_mla_prefill_workspace_factor
    index = index_lane_bytes(max_model_len=1_048_576, gather_factor=16, **INDEX)
    assert index == 2_214_592_512
    assert lane_bytes(one=4_513_726_464, other=index) == 4_513_726_464


def test_shorter_records_ask_for_more():
    step = {"max_model_len": 131_072, "max_num_batched_tokens": 8192}
    one, two = (attention_lane_bytes(tokens_per_record=r, **step, **ATTENTION) for r in (1, 2))
    assert one - two == 4 * 65_536 * 512 * 2


def test_buffers_that_follow_the_step():
    # the Memory page, steps of 32,768 tokens
    assert choices_bytes(max_num_batched_tokens=32_768, choices=512) == 67_108_864
    assert choices_bytes(max_num_batched_tokens=32_768, choices=2048) == 268_435_456
    states = drafter_states_bytes(max_num_batched_tokens=32_768, streams=4, hidden=5120, act_bits=16)
    assert states == 1_342_177_280
