"""The laws of recurrent states against values that the engine's own shapes give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.laws.recurrent import (
    delta_net_conv_elements,
    delta_net_temporal_elements,
    fixed_state_pages,
    kda_conv_elements,
    kda_temporal_elements,
    mamba2_conv_elements,
    mamba2_temporal_elements,
    state_page_bytes,
)


@pytest.mark.parametrize(("ranks", "page"), [(1, 8_536_064), (2, 4_268_032), (4, 2_134_016), (8, 1_067_008)])
def test_a_state_of_nemotron_3_ultra_with_one_token_drafted(ranks, page):
    # vllm 0.33.0, MambaStateShapeCalculator: convolution in bf16, temporal state in fp32
    conv = mamba2_conv_elements(
        inner=16_384,
        n_groups=8,
        state_size=128,
        conv_kernel=4,
        num_speculative_tokens=1,
        tensor_parallel_size=ranks,
    )
    temporal = mamba2_temporal_elements(n_heads=256, head_dim=64, state_size=128, tensor_parallel_size=ranks)
    assert state_page_bytes(conv_elements=conv, conv_bits=16, temporal_elements=temporal, temporal_bits=32) == page


def test_a_state_of_qwen3_next_has_the_engine_s_shapes():
    # vllm 0.33.0, Qwen3-Next-80B-A3B on two ranks: [3, 4096] and [16, 128, 128]
    conv = delta_net_conv_elements(
        n_k_heads=16,
        k_head_dim=128,
        n_v_heads=32,
        v_head_dim=128,
        conv_kernel=4,
        num_speculative_tokens=0,
        tensor_parallel_size=2,
    )
    temporal = delta_net_temporal_elements(n_v_heads=32, v_head_dim=128, k_head_dim=128, tensor_parallel_size=2)
    assert (conv, temporal) == (3 * 4096, 16 * 128 * 128)


def test_a_state_of_nemotron_3_nano_has_the_engine_s_shapes():
    # vllm 0.33.0, Nemotron-3-Nano-30B-A3B on one rank: [3, 6144] and [64, 64, 128]
    conv = mamba2_conv_elements(
        inner=4096, n_groups=8, state_size=128, conv_kernel=4, num_speculative_tokens=0, tensor_parallel_size=1
    )
    temporal = mamba2_temporal_elements(n_heads=64, head_dim=64, state_size=128, tensor_parallel_size=1)
    assert (conv, temporal) == (3 * 6144, 64 * 64 * 128)


def test_kimi_s_delta_attention_has_three_convolutions():
    conv = kda_conv_elements(
        value_width=4096, key_width=4096, conv_kernel=4, num_speculative_tokens=0, tensor_parallel_size=1
    )
    assert conv == 3 * 3 * 4096
    assert kda_temporal_elements(n_heads=32, head_dim=128, tensor_parallel_size=1) == 32 * 128 * 128


@pytest.mark.parametrize(
    ("kept", "drafted", "pages"),
    [(1, 0, 1), (1, 3, 4), (2, 0, 2), (2, 3, 5)],
)
def test_states_that_do_not_follow_the_length(kept, drafted, pages):
    # BLIS latency kernel, the Memory page: modes none and align
    assert fixed_state_pages(kept=kept, num_speculative_tokens=drafted) == pages


@given(ranks=st.sampled_from([1, 2, 4, 8]), drafted=st.integers(0, 8))
def test_ranks_share_both_parts_and_drafts_lengthen_only_the_convolution(ranks, drafted):
    def conv(t, q):
        return mamba2_conv_elements(
            inner=16_384, n_groups=8, state_size=128, conv_kernel=4, num_speculative_tokens=q, tensor_parallel_size=t
        )

    assert conv(ranks, drafted) * ranks == conv(1, drafted)
    assert conv(1, drafted) - conv(1, 0) == drafted * (16_384 + 2 * 8 * 128)
