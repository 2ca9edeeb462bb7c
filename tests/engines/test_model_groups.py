"""Layers in groups, and what a request holds of the pool, against the engine's own planning."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engines.pool import Group, kv_groups, longest_length, n_batches, request_blocks, steady_blocks
from capplan.hub import load_model
from capplan.settings.deployment import Deployment

IN_FLIGHT = 16_384


def groups_of(name, *, kv_bits=16, block_size=16, **settings):
    return kv_groups(load_model(name), Deployment(block_size=block_size, **settings), kv_bits)


def shape(groups):
    return [(g.spec, g.layers, g.page_bytes, g.window) for g in groups]


def test_layers_of_one_kind_are_one_group():
    # vllm 0.33.0, Llama-3.1-8B on H100 tp 1: 32 layers, pages of 65,536 bytes, pool blocks of 2,097,152
    (group,) = groups_of("meta-llama/Meta-Llama-3.1-8B")
    assert shape([group]) == [("FullAttentionSpec", tuple(range(32)), 65_536, None)]
    assert (group.block_size, group.block_bytes) == (16, 2_097_152)


def test_a_model_whose_layers_all_slide_is_one_group():
    # vllm 0.33.0, Mistral-7B-v0.1 on H100
    (group,) = groups_of("mistralai/Mistral-7B-v0.1")
    assert shape([group]) == [("SlidingWindowSpec", tuple(range(32)), 65_536, 4096)]


def test_latent_pages_do_not_shrink_with_ranks():
    # vllm 0.33.0, DeepSeek-V3 on H100 tp 8 and 16: pool blocks of 1,124,352 bytes; fp8 in blocks of 64: 2,248,704
    for ranks in (8, 16):
        (group,) = groups_of("deepseek-ai/DeepSeek-V3", tensor_parallel_size=ranks)
        assert (group.spec, group.block_bytes) == ("MLAAttentionSpec", 1_124_352)
    assert groups_of("deepseek-ai/DeepSeek-V3", kv_bits=8, block_size=64)[0].block_bytes == 2_248_704


def test_gemma_2_alternates_between_two_groups():
    # vllm 0.33.0, Gemma 2 9B on H100 tp 1
    assert shape(groups_of("google/gemma-2-9b-it")) == [
        ("SlidingWindowSpec", tuple(range(0, 42, 2)), 131_072, 4096),
        ("FullAttentionSpec", tuple(range(1, 42, 2)), 131_072, None),
    ]


def test_gemma_3_deals_22_sliding_layers_to_six_groups_in_turn():
    # vllm 0.33.0, Gemma 3 1B on H100 tp 1: four full layers, so groups of four; two of the sliding ones hold three
    assert shape(groups_of("google/gemma-3-1b-it")) == [
        ("SlidingWindowSpec", (0, 7, 14, 21), 16_384, 512),
        ("SlidingWindowSpec", (1, 8, 15, 22), 16_384, 512),
        ("SlidingWindowSpec", (2, 9, 16, 24), 16_384, 512),
        ("SlidingWindowSpec", (3, 10, 18, 25), 16_384, 512),
        ("SlidingWindowSpec", (4, 12, 19), 16_384, 512),
        ("SlidingWindowSpec", (6, 13, 20), 16_384, 512),
        ("FullAttentionSpec", (5, 11, 17, 23), 16_384, None),
    ]


def test_without_the_hybrid_manager_windows_become_full_caches():
    # vllm 0.33.0, Gemma 2 27B on H100 with --disable-hybrid-kv-cache-manager: 512 blocks a request of 6,029,312 bytes
    (group,) = groups_of("google/gemma-2-27b-it", disable_hybrid_kv_cache_manager=True)
    assert shape([group]) == [("FullAttentionSpec", tuple(range(46)), 131_072, None)]
    assert group.block_bytes == 6_029_312
    assert request_blocks((group,), Deployment(), 8192, IN_FLIGHT) == 512


@pytest.mark.parametrize(
    ("sliding", "full", "sizes"),
    [
        # vllm 0.33.0, v1/core/kv_cache_planning.py: below 1.5 times the fewest, the most is the size of a group
        (10, 10, [10, 10]),
        (10, 14, [10, 14]),
        (10, 15, [10, 8, 7]),
        (10, 16, [10, 8, 8]),
        (12, 13, [12, 13]),  # one group each, as the engine's comment has it
        (20, 10, [10, 10, 10]),  # and three groups of ten
        (3, 1, [1, 1, 1, 1]),
        (29, 20, [29, 20]),
        (30, 20, [15, 15, 20]),
    ],
)
def test_a_kind_is_cut_into_groups_of_the_fewest_unless_the_most_is_near(sliding, full, sizes):
    gemma = load_model("google/gemma-2-9b-it")
    window, whole = gemma.attention
    kinds = (
        replace(window, layers=tuple(range(sliding))),
        replace(whole, layers=tuple(range(sliding, sliding + full))),
    )
    groups = kv_groups(replace(gemma, attention=kinds), Deployment(block_size=16), 16)
    assert [len(g.layers) for g in groups] == sizes
    assert sorted(layer for g in groups for layer in g.layers) == list(range(sliding + full))


@pytest.mark.parametrize(
    ("name", "settings", "tokens", "blocks"),
    [
        # vllm 0.33.0 on H100, blocks of one request of max_model_len
        ("meta-llama/Meta-Llama-3.1-8B", {}, 131_072, 8192),
        ("google/gemma-2-9b-it", {}, 8192, 1025),
        ("google/gemma-3-1b-it", {}, 32_768, 8390),
        ("google/gemma-3-1b-it", {"block_size": 32, "kv_bits": 8}, 8192, 1798),
        ("mistralai/Mistral-7B-v0.1", {}, 32_768, 1281),
        ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 163_840, 1280),
    ],
)
def test_a_request_needs_as_many_blocks_as_the_engine_says(name, settings, tokens, blocks):
    d = Deployment(**{key: value for key, value in settings.items() if key not in ("block_size", "kv_bits")})
    assert request_blocks(groups_of(name, **settings), d, tokens, IN_FLIGHT) == blocks


def test_steady_blocks_are_those_of_windows_and_of_the_others():
    groups, d = groups_of("google/gemma-2-9b-it"), Deployment()
    windows, others = (steady_blocks(groups, d, 8192, windows=flag) for flag in (True, False))
    assert (windows, others) == (4096 // 16 + 1, 8192 // 16)
    assert steady_blocks(groups, d, 8192) == windows + others
    assert steady_blocks(groups, d, 0) == 0


@pytest.mark.parametrize(
    ("name", "settings", "blocks", "limit", "longest"),
    [
        # vllm 0.33.0 refuses to start with this many blocks and names the longest length
        ("meta-llama/Meta-Llama-3.1-8B", {}, 4096, 131_072, 65_520),
        ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 8}, 7639, 163_840, 122_208),
        ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 8, "block_size": 32}, 3819, 163_840, 122_176),
        # and starts with one block more than a request needs
        ("google/gemma-2-9b-it", {}, 1026, 8192, 8192),
    ],
)
def test_the_longest_length_is_the_one_the_engine_names(name, settings, blocks, limit, longest):
    d = Deployment(max_model_len=limit, **{k: v for k, v in settings.items() if k != "block_size"})
    assert longest_length(groups_of(name, **settings), d, blocks, IN_FLIGHT) == longest


def small_group(window, block_size):
    return Group(
        layers=(0,),
        spec="SlidingWindowSpec" if window else "FullAttentionSpec",
        kind="sliding" if window else "full",
        block_size=block_size,
        page_bytes=1,
        window=window,
    )


POOLS = st.tuples(
    st.lists(st.integers(1, 20) | st.none(), min_size=1, max_size=4, unique=True),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4]),
).map(lambda p: (tuple(small_group(w, p[1]) for w in p[0]), p[2] if p[0] == [None] else 1))
BLOCKS, LIMITS, FLIGHTS = st.integers(0, 60), st.integers(1, 80), st.integers(1, 30)


@settings(deadline=None)
@given(pool=POOLS, blocks=BLOCKS, limit=LIMITS, in_flight=FLIGHTS)
def test_the_longest_length_is_the_last_that_passes_the_start_check(pool, blocks, limit, in_flight):
    groups, contexts = pool
    d = Deployment(max_model_len=limit, decode_context_parallel_size=contexts)
    passes = [n for n in range(1, limit + 1) if request_blocks(groups, d, n, in_flight) <= blocks - 1]
    assert longest_length(groups, d, blocks, in_flight) == max(passes, default=0)


@settings(deadline=None)
@given(
    pool=POOLS,
    cases=st.lists(st.tuples(BLOCKS, LIMITS, FLIGHTS, st.integers(0, 200)), min_size=1, max_size=6),
)
def test_many_pools_are_one_pool_repeated(pool, cases):
    groups, contexts = pool
    d = Deployment(decode_context_parallel_size=contexts)
    blocks, limits, flights, tokens = (np.array(column, dtype=np.int64) for column in zip(*cases, strict=True))
    many = longest_length(groups, replace(d, max_model_len=limits), blocks, flights)
    assert many.tolist() == [longest_length(groups, replace(d, max_model_len=n), b, f) for b, n, f, _ in cases]
    assert request_blocks(groups, d, tokens, flights).tolist() == [
        request_blocks(groups, d, t, f) for *_, f, t in cases
    ]
    assert steady_blocks(groups, d, tokens).tolist() == [steady_blocks(groups, d, t) for *_, t in cases]


@settings(deadline=None)
@given(pool=POOLS, tokens=st.integers(1, 300), in_flight=FLIGHTS)
def test_admission_needs_no_less_than_steady_decode(pool, tokens, in_flight):
    groups, contexts = pool
    d = Deployment(decode_context_parallel_size=contexts)
    assert request_blocks(groups, d, tokens, in_flight) >= steady_blocks(groups, d, tokens) >= 1
    assert request_blocks(groups, d, tokens + 1, in_flight) >= request_blocks(groups, d, tokens, in_flight)


@pytest.mark.parametrize(
    ("stages", "asynchronous", "batches"), [(1, True, 2), (1, False, 1), (2, True, 3), (2, False, 2)]
)
def test_a_stage_and_asynchronous_scheduling_keep_a_batch_in_flight(stages, asynchronous, batches):
    # vllm 0.33.0, max_in_flight_tokens: 16,384 of 8,192 on one stage, 24,576 on two
    assert n_batches(Deployment(pipeline_parallel_size=stages, async_scheduling=asynchronous)) == batches
