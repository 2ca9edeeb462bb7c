"""The laws of weights against tensors that the engine built.

"vllm 0.33.0, MODEL on CHIP tp N" means the engine's own classes, built on meta tensors: their number, shape and bytes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.laws.weights import (
    counter_buffer_bytes,
    experts_per_rank,
    matrix_bytes,
    rotary_cache_bytes,
    share_per_rank,
    vocab_rows_per_rank,
)
from capplan.units import show_bytes

RANKS = st.integers(1, 64)
SIZES = st.integers(1, 2**20)


@pytest.mark.parametrize(
    ("rows", "columns", "bits", "number", "total"),
    [
        (28_672, 4096, 16, 32, 7_516_192_768),  # vllm 0.33.0, Llama-3.1-8B on H100 tp 1: gate_up_proj
        (28_672, 4096, 8, 32, 3_758_096_384),  # the same quantized to fp8 while loading
        (28_672, 4096, 4, 32, 1_879_048_192),  # the same from an AWQ checkpoint of 4 bits
        (128_256, 4096, 16, 1, 1_050_673_152),  # the same model: lm_head
        (2112, 7168, 8, 61, 923_467_776),  # vllm 0.33.0, DeepSeek-V3 on H100 tp 8: fused_qkv_a_proj
    ],
)
def test_a_matrix_is_as_large_as_the_engine_made_it(rows, columns, bits, number, total):
    assert number * matrix_bytes(n_rows=rows, n_columns=columns, weight_bits=bits) == total


def test_half_a_byte_is_rounded_up_once_for_a_matrix():
    assert [matrix_bytes(n_rows=1, n_columns=n, weight_bits=4) for n in (1, 2, 3)] == [1, 1, 2]


def test_an_extent_is_divided_as_the_engine_divided_it():
    # vllm 0.33.0, DeepSeek-V3 on H100 tp 8: down_proj, shared_experts.down_proj and o_proj have these columns
    assert [share_per_rank(size=n, tensor_parallel_size=8) for n in (18_432, 2048, 128 * 128)] == [2304, 256, 2048]
    # vllm 0.33.0, Qwen3-32B-FP8 on B200 tp 2: down_proj
    assert share_per_rank(size=25_600, tensor_parallel_size=2) == 12_800


@pytest.mark.parametrize(
    ("vocab", "ranks", "rows"),
    [
        (128_256, 1, 128_256),  # vllm 0.33.0, Llama-3.1-8B on H100 tp 1: embed_tokens
        (151_936, 2, 75_968),  # vllm 0.33.0, Qwen3-30B-A3B on B200 tp 2
        (129_280, 8, 16_160),  # vllm 0.33.0, DeepSeek-V3 on H100 tp 8
        (32_000, 4, 8000),  # vllm 0.33.0, Mixtral-8x7B on B200 tp 4
        (1010, 1, 1024),  # the docstring of vllm's VocabParallelEmbedding: 1,010 words become 1,024 rows,
        (1010, 2, 512),  # 512 of them on each of two ranks
        (1024 + 16, 2, 544),  # and with 16 more words 544
    ],
)
def test_a_vocabulary_is_padded_first_and_shared_after(vocab, ranks, rows):
    assert vocab_rows_per_rank(vocab=vocab, vocab_padding=64, tensor_parallel_size=ranks) == rows


def test_a_vocabulary_grows_by_64_rows_at_a_time():
    rows = [vocab_rows_per_rank(vocab=v, vocab_padding=64, tensor_parallel_size=1) for v in (63, 64, 65, 128, 129)]
    assert rows == [64, 64, 128, 128, 192]


@pytest.mark.parametrize(
    ("experts", "ranks", "fullest"),
    [
        (128, 8, 16),  # vllm 0.33.0, Qwen3-30B-A3B on H100 tp 2 dp 4 with expert parallelism
        (256, 16, 16),  # vllm 0.33.0, DeepSeek-R1 on H100 tp 16 with expert parallelism
        (256, 8, 32),  # the BLIS kernel, internal/price/memory.go: experts of the fuller rank
        (256, 72, 4),
        (224, 16, 14),
        (384, 72, 6),
        (128, 3, 43),
    ],
)
def test_experts_of_the_fullest_rank(experts, ranks, fullest):
    assert experts_per_rank(n_experts=experts, expert_parallel_size=ranks) == fullest


def test_one_expert_too_many_makes_one_rank_fuller():
    assert [experts_per_rank(n_experts=n, expert_parallel_size=8) for n in (15, 16, 17)] == [2, 2, 3]


@pytest.mark.parametrize(
    ("positions", "dim", "total"),
    [
        (131_072, 128, 33_554_432),  # vllm 0.33.0, Llama-3.1-8B: cos_sin_cache
        (163_840, 64, 20_971_520),  # vllm 0.33.0, DeepSeek-V3
        (32_768, 256, 33_554_432 // 2),  # vllm 0.33.0, Gemma 3 1B: two tables of this size
        (10_485_760, 128, 2_684_354_560),  # vllm 0.33.0, Llama-4-Scout: ten million positions, 2.50 GiB on each rank
    ],
)
def test_a_rotary_table_is_as_large_as_the_engine_made_it(positions, dim, total):
    assert rotary_cache_bytes(n_positions=positions, rotary_dim=dim, cache_bits=16) == total


def test_ten_million_positions_take_more_than_two_gib():
    assert show_bytes(rotary_cache_bytes(n_positions=10_485_760, rotary_dim=128, cache_bits=16)) == "2.50 GiB"


@pytest.mark.parametrize(
    ("heads", "total"),
    [
        (32, 2_097_152),  # vllm 0.33.0 on B200, 16,384 tokens a step: Qwen3-8B tp 1
        (16, 1_048_576),  # Qwen3-30B-A3B tp 2
        (8, 524_288),  # Mixtral-8x7B tp 4
    ],
)
def test_blackwell_counts_each_token_of_each_head(heads, total):
    more = {"decode_context_parallel_size": 1, "multiprocessors": 148}
    assert counter_buffer_bytes(max_num_batched_tokens=16_384, n_heads=heads, **more) == total


def test_counters_are_at_least_one_a_multiprocessor_and_a_multiple_of_eight():
    def counters(tokens):
        more = {"n_heads": 1, "decode_context_parallel_size": 1, "multiprocessors": 148}
        return counter_buffer_bytes(max_num_batched_tokens=tokens, **more) // 4

    assert [counters(tokens) for tokens in (1, 148, 152, 153)] == [152, 152, 152, 160]


@given(size=SIZES, t=RANKS)
def test_what_a_rank_holds_does_not_grow_with_ranks(size, t):
    fewer, more = {"tensor_parallel_size": t}, {"tensor_parallel_size": t + 1}
    assert share_per_rank(size=size, **more) <= share_per_rank(size=size, **fewer)
    table = {"vocab": size, "vocab_padding": 64}
    assert vocab_rows_per_rank(**table, **more) <= vocab_rows_per_rank(**table, **fewer)
    one_more, as_many = (experts_per_rank(n_experts=size, expert_parallel_size=w) for w in (t + 1, t))
    assert one_more <= as_many


@given(experts=st.integers(1, 1024), ranks=RANKS)
def test_the_ranks_together_hold_every_expert(experts, ranks):
    fullest = experts_per_rank(n_experts=experts, expert_parallel_size=ranks)
    assert (fullest - 1) * ranks < experts <= fullest * ranks


@given(rows=SIZES, columns=st.integers(1, 4096), bits=st.sampled_from([4, 8, 16, 32]))
def test_a_matrix_never_shrinks_by_a_row(rows, columns, bits):
    less, more = (matrix_bytes(n_rows=n, n_columns=columns, weight_bits=bits) for n in (rows, rows + 1))
    assert less <= more
    assert (less - 1) * 8 < rows * columns * bits <= less * 8
