"""The key-value laws against values that others published.

"vllm 0.33.0, MODEL on CHIP" means what the engine's own planning answered for a given amount of memory.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.laws.kv_cache import (
    full_request_blocks,
    kv_heads_per_rank,
    page_bytes,
    requests_beside_null_block,
    tokens_of_blocks,
    whole_blocks,
    window_admission_blocks,
    window_decode_blocks,
)
from capplan.units import show_bytes

BLOCKS = st.sampled_from([1, 8, 16, 32, 64, 128])
TOKENS = st.integers(0, 2**20)


def token_bytes(*, layers, heads, dim, bits, ranks, value_dim=None):
    """Bytes of one token in all layers of a rank."""
    h = kv_heads_per_rank(n_kv_heads=heads, tensor_parallel_size=ranks)
    v = dim if value_dim is None else value_dim
    return layers * page_bytes(block_size=1, n_kv_heads=h, head_dim=dim, head_dim_v=v, kv_bits=bits)


def test_a_262144_token_request_of_qwen3_coder_needs_62_gib():
    # vllm-project/recipes pull request 12: "62.00 GiB KV cache is needed"
    assert show_bytes(262_144 * token_bytes(layers=62, heads=8, dim=128, bits=16, ranks=1)) == "62.00 GiB"


@pytest.mark.parametrize(
    ("blocks", "shown", "context_tokens", "concurrency"),
    [
        # vllm-project/vllm issue 10517: Llama-3.1-8B on a 24 GB card, two start-up logs
        (1952, "3.81 GiB", 20_000, "1.56x"),
        (1478, "2.89 GiB", 29_000, "0.82x"),
    ],
)
def test_blocks_and_concurrency_as_vllm_logged_them(blocks, shown, context_tokens, concurrency):
    assert show_bytes(blocks * 16 * token_bytes(layers=32, heads=8, dim=128, bits=16, ranks=1)) == shown
    assert f"{blocks * 16 / context_tokens:.2f}x" == concurrency


def test_heads_stop_dividing_at_one_per_rank():
    assert [kv_heads_per_rank(n_kv_heads=8, tensor_parallel_size=t) for t in (4, 7, 8, 9, 16)] == [2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "bits", "ranks", "size"),
    [
        # the BLIS kernel, internal/price/memory_test.go: bytes per token and rank
        (80, 8, 128, 16, 4, 81_920),
        (80, 8, 128, 16, 8, 40_960),
        (80, 8, 128, 16, 16, 40_960),
        (32, 8, 128, 16, 1, 131_072),
        (12, 2, 128, 8, 4, 3072),
    ],
)
def test_a_token_takes_a_key_and_a_value_of_each_head(layers, heads, dim, bits, ranks, size):
    assert token_bytes(layers=layers, heads=heads, dim=dim, bits=bits, ranks=ranks) == size


@pytest.mark.parametrize(("bits", "size"), [(8, 35_136), (16, 70_272)])
def test_a_latent_token_is_one_vector_without_a_value(bits, size):
    # the BLIS kernel, example_test.go: deepseek-v3, 61 layers of 512 + 64 elements
    for ranks in (1, 8, 16):
        assert token_bytes(layers=61, heads=1, dim=576, value_dim=0, bits=bits, ranks=ranks) == size


@pytest.mark.parametrize(
    ("block_size", "heads", "dim", "value_dim", "bits", "page"),
    [
        (16, 8, 128, 128, 16, 65_536),  # vllm 0.33.0, Llama-3.1-8B on H100 tp 1
        (16, 1, 128, 128, 16, 8192),  # the same at tp 8
        (16, 8, 256, 256, 16, 131_072),  # vllm 0.33.0, Gemma 2 9B on H100 tp 1
        (32, 1, 256, 256, 8, 16_384),  # vllm 0.33.0, Gemma 3 1B on H100, fp8 in blocks of 32
        (16, 1, 576, 0, 16, 18_432),  # vllm 0.33.0, DeepSeek-V3 on H100 tp 8
        (64, 1, 576, 0, 8, 36_864),  # the same with an fp8 cache
    ],
)
def test_a_page_is_as_large_as_the_engine_says(block_size, heads, dim, value_dim, bits, page):
    sizes = {"n_kv_heads": heads, "head_dim": dim, "head_dim_v": value_dim, "kv_bits": bits}
    assert page_bytes(block_size=block_size, **sizes) == page


@pytest.mark.parametrize(
    ("tokens", "block_size", "contexts", "blocks"),
    [
        (131_072, 16, 1, 8192),  # vllm 0.33.0, Llama-3.1-8B on H100
        (163_840, 32, 1, 5120),  # vllm 0.33.0, DeepSeek-V3 on B200
        (163_840, 64, 1, 2560),  # vllm 0.33.0, DeepSeek-V3 on H100 with an fp8 cache
        (163_840, 16, 8, 1280),  # the same in 16 bits on eight ranks that share a context
        (1000, 16, 3, 21),  # the BLIS kernel, kernel.go: 1,000 tokens at dcp 3 are charged as 336, 21 pages
    ],
)
def test_a_request_fills_as_many_blocks_as_the_engine_says(tokens, block_size, contexts, blocks):
    sizes = {"context_tokens": tokens, "block_size": block_size, "decode_context_parallel_size": contexts}
    assert full_request_blocks(**sizes) == blocks


def test_a_request_takes_a_block_more_one_token_above_a_page():
    def blocks(tokens, contexts=1):
        return full_request_blocks(context_tokens=tokens, block_size=16, decode_context_parallel_size=contexts)

    assert [blocks(tokens) for tokens in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 1, 1, 2, 2, 3]
    assert [blocks(tokens, contexts=4) for tokens in (63, 64, 65)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "window", "in_flight", "block_size", "blocks"),
    [
        (8192, 4096, 16_384, 16, 513),  # vllm 0.33.0, Gemma 2 9B on H100: 1,025 with the full group's 512
        (32_768, 4096, 16_384, 16, 1281),  # vllm 0.33.0, Mistral-7B-v0.1 on H100
        (32_768, 512, 16_384, 16, 1057),  # vllm 0.33.0, Gemma 3 1B: 8,390 = 6 x this + 2,048
        (8192, 512, 16_384, 32, 257),  # the same, fp8 in blocks of 32: 1,798 = 6 x this + 256
        # DeepSeek-V4.1-Flash on H200, pages of 32 tokens: the BLIS Memory page has 517 (8,192 tokens a step, two in
        # flight); the others come from vllm 0.33.0's grouping code
        (1_048_576, 128, 2 * 8192, 32, 517),
        (1_048_576, 128, 2 * 32_768, 32, 2053),
        (1_048_576, 128, 8192, 32, 261),
        (4096, 128, 2 * 8192, 32, 129),
    ],
)
def test_a_window_asks_for_what_is_in_flight_at_admission(tokens, window, in_flight, block_size, blocks):
    sizes = {"context_tokens": tokens, "window": window, "max_in_flight_tokens": in_flight, "block_size": block_size}
    assert window_admission_blocks(**sizes) == blocks


def test_a_short_request_caps_the_window_before_the_division():
    def blocks(tokens):
        return window_admission_blocks(context_tokens=tokens, window=32, max_in_flight_tokens=17, block_size=16)

    # 32 - 1 + 17 = 48 tokens are three blocks, and one more
    assert [blocks(tokens) for tokens in (16, 17, 47, 48, 49, 10_000)] == [2, 3, 4, 4, 4, 4]


def test_a_window_holds_its_tokens_and_one_block_in_steady_decode():
    # DeepSeek-V4.1-Flash, window of 128 in pages of 32, from vllm 0.33.0's grouping code: without speculation and with
    assert [window_decode_blocks(window=128, num_speculative_tokens=n, block_size=32) for n in (0, 5)] == [5, 6]


@pytest.mark.parametrize(
    ("budget", "block", "blocks"),
    [
        # vllm 0.33.0, num_gpu_blocks at a stated amount of memory
        (40_000_000_000, 2_097_152, 19_073),  # Llama-3.1-8B on H100 tp 1
        (100_000_000_007, 2_097_152, 47_683),
        (40_000_000_000, 1_124_352, 35_576),  # DeepSeek-V3 on H100 tp 8
        (8_589_934_592, 65_536, 131_072),  # Gemma 3 1B, which the memory divides
    ],
)
def test_a_pool_has_as_many_blocks_as_the_engine_says(budget, block, blocks):
    assert whole_blocks(budget_bytes=budget, block_bytes=block) == blocks


def test_a_block_begun_is_no_block():
    assert [whole_blocks(budget_bytes=n, block_bytes=100) for n in (99, 100, 101, 199, 200)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("blocks", "block_size", "contexts", "tokens"),
    [
        # vllm 0.33.0 refuses to start with 8,589,934,592 bytes and names this as the longest length
        (4096, 16, 1, 65_520),  # Llama-3.1-8B on H100
        (7639, 16, 1, 122_208),  # DeepSeek-V3 on H100 tp 8
        (3819, 32, 1, 122_176),  # DeepSeek-V3 on B200 tp 8
    ],
)
def test_one_block_of_the_pool_is_never_handed_out(blocks, block_size, contexts, tokens):
    pool = {"kv_blocks": blocks, "block_size": block_size, "decode_context_parallel_size": contexts}
    assert tokens_of_blocks(**pool) == tokens
    # so a request of the whole pool does not fit, and one of a block less does
    assert [requests_beside_null_block(kv_blocks=blocks, request_blocks=n) for n in (blocks, blocks - 1)] == [0, 1]


def test_a_pool_of_one_block_or_none_holds_nothing():
    assert [requests_beside_null_block(kv_blocks=n, request_blocks=1) for n in (0, 1, 2)] == [0, 0, 1]
    pools = [{"kv_blocks": n, "block_size": 16, "decode_context_parallel_size": 1} for n in (0, 1, 2)]
    assert [tokens_of_blocks(**pool) for pool in pools] == [0, 0, 16]


@given(layers=st.integers(1, 128), heads=st.integers(1, 128), dim=st.integers(1, 512), ranks=st.integers(1, 128))
def test_a_token_does_not_grow_with_ranks(layers, heads, dim, ranks):
    few, more = (token_bytes(layers=layers, heads=heads, dim=dim, bits=16, ranks=t) for t in (ranks, ranks + 1))
    assert more <= few


@given(dim=st.integers(1, 1024), bits=st.sampled_from([8, 16]), ranks=st.integers(1, 512))
def test_ranks_do_not_shrink_a_latent_token(dim, bits, ranks):
    alone, shared = (token_bytes(layers=1, heads=1, dim=dim, value_dim=0, bits=bits, ranks=t) for t in (1, ranks))
    assert alone == shared


@given(tokens=TOKENS, block_size=BLOCKS, contexts=st.integers(1, 16))
def test_request_blocks_are_a_step_function_that_is_constant_within_a_page(tokens, block_size, contexts):
    def blocks(length):
        pages = {"block_size": block_size, "decode_context_parallel_size": contexts}
        return full_request_blocks(context_tokens=length, **pages)

    page = block_size * contexts
    assert blocks(0) == 0
    assert blocks(tokens + 1) - blocks(tokens) == (1 if tokens % page == 0 else 0)


@given(tokens=st.integers(1, 2**20), window=st.integers(1, 2**15), in_flight=st.integers(1, 2**16), block_size=BLOCKS)
def test_admission_asks_for_no_less_than_steady_decode_holds(tokens, window, in_flight, block_size):
    sizes = {"window": window, "block_size": block_size}
    whole = full_request_blocks(context_tokens=tokens, block_size=block_size, decode_context_parallel_size=1)
    steady = min(window_decode_blocks(**sizes, num_speculative_tokens=0), whole)
    assert window_admission_blocks(context_tokens=tokens, **sizes, max_in_flight_tokens=in_flight) >= steady


@given(tokens=TOKENS, window=st.integers(1, 2**15), in_flight=st.integers(1, 2**16), block_size=BLOCKS)
def test_window_blocks_do_not_fall_with_length(tokens, window, in_flight, block_size):
    sizes = {"window": window, "block_size": block_size, "max_in_flight_tokens": in_flight}
    less, more = (window_admission_blocks(context_tokens=t, **sizes) for t in (tokens, tokens + 1))
    assert less <= more


@given(blocks=st.integers(0, 2**30), block_size=BLOCKS, contexts=st.integers(1, 16))
def test_the_longest_request_of_a_pool_fits_and_one_token_more_does_not(blocks, block_size, contexts):
    ranks = {"block_size": block_size, "decode_context_parallel_size": contexts}
    longest = tokens_of_blocks(kv_blocks=blocks, **ranks)
    assert full_request_blocks(context_tokens=longest, **ranks) == max(blocks - 1, 0)
    assert full_request_blocks(context_tokens=longest + 1, **ranks) == max(blocks - 1, 0) + 1
