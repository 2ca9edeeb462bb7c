"""Grouping: uniform types, packed pages, unified pages, and what is done where nothing groups."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engines.pool import (
    CHUNKED,
    FULL,
    RECURRENT,
    RING,
    SLIDING,
    Cache,
    CannotGroup,
    Group,
    Spec,
    admitted,
    decoding,
    grouped,
    longest_length,
    n_batches,
    own_pages,
    pool_block_bytes,
    request_blocks,
    steady_blocks,
)
from capplan.settings.deployment import Deployment


def spec(kind, page, block=16, **more):
    return Spec(spec=kind, kind=kind, block_size=block, page_bytes=page, **more)


FULL_16 = spec(FULL, 65_536)
WINDOW_16 = spec(SLIDING, 65_536, window=1024)


def layers(*specs):
    """One cache a layer, in this order."""
    return tuple(Cache(layer=i, spec=s) for i, s in enumerate(specs))


def sizes(groups):
    return [(g.kind, len(g.caches())) for g in groups]


def test_caches_of_one_kind_are_one_group():
    groups = grouped(layers(*[FULL_16] * 32))
    assert sizes(groups) == [("full", 32)]
    assert pool_block_bytes(groups) == 32 * 65_536


def test_caches_of_one_type_and_several_pages_are_one_group_with_members():
    # DeepSeek-V3.2 on H100, vllm 0.33.0: latent pages of 73,728 bytes beside an indexer's of 8,448, 61 layers
    latent, index = spec(FULL, 73_728, 64, latent=True), spec(FULL, 8448, 64, latent=True, name="index")
    caches = tuple(Cache(layer=i, spec=s) for i in range(61) for s in (index, latent))
    (group,) = grouped(caches)
    assert group.spec == "UniformTypeKVCacheSpecs"
    assert (len(group.members), len(group.layers)) == (122, 61)
    assert group.block_bytes == group.page_bytes == pool_block_bytes((group,)) == 5_012_736


def test_windows_become_full_where_the_hybrid_manager_is_off():
    groups = grouped(layers(*[WINDOW_16, FULL_16] * 21), hybrid=False)
    assert sizes(groups) == [("full", 42)]


@pytest.mark.parametrize(
    ("n_windows", "n_full", "wanted"),
    [
        # vllm 0.33.0, v1/core/kv_cache_planning.py: below 1.5 times the fewest, the most is the size of a group
        (12, 13, [("sliding", 12), ("full", 13)]),
        (10, 14, [("sliding", 10), ("full", 14)]),
        (10, 15, [("sliding", 10), ("full", 8), ("full", 7)]),
        (10, 16, [("sliding", 10), ("full", 8), ("full", 8)]),
        (20, 10, [("sliding", 10), ("sliding", 10), ("full", 10)]),
        (29, 20, [("sliding", 29), ("full", 20)]),
        (30, 20, [("sliding", 15), ("sliding", 15), ("full", 20)]),
        # gemma-3-1b-it, vllm 0.33.0
        (22, 4, [("sliding", 4)] * 4 + [("sliding", 3)] * 2 + [("full", 4)]),
    ],
)
def test_kinds_of_one_page_are_dealt_to_groups_of_about_one_size(n_windows, n_full, wanted):
    groups = grouped(layers(*[WINDOW_16] * n_windows, *[FULL_16] * n_full))
    assert sizes(groups) == wanted
    assert pool_block_bytes(groups) == max(n for _, n in wanted) * 65_536


def test_a_smaller_page_that_divides_the_largest_gets_a_longer_block():
    # Gemma 4 26B, vllm 0.33.0: full pages of half the windows' size hold 32 tokens instead of 16
    windows, full = spec(SLIDING, 131_072, window=1024), spec(FULL, 65_536)
    groups = grouped(layers(*([windows] * 5 + [full]) * 5))
    assert [(g.block_size, g.page_bytes) for g in groups] == [(16, 131_072)] * 5 + [(32, 131_072)]
    assert pool_block_bytes(groups) == 655_360


def test_states_and_plain_pages_are_padded_to_the_largest():
    state, full, odd = spec(RECURRENT, 50_000, pages=2), spec(FULL, 65_536), spec(SLIDING, 40_000, window=64)
    groups = grouped(layers(state, full, odd))
    assert [g.page_bytes for g in groups] == [65_536] * 3


def test_a_latent_page_that_does_not_divide_the_largest_cannot_be_grouped():
    caches = layers(spec(FULL, 10_000, latent=True, name="latent"), WINDOW_16)
    with pytest.raises(CannotGroup, match="10,000"):
        grouped(caches)
    groups = own_pages(caches)
    assert sum(g.block_bytes for g in groups) == 10_000 + 65_536


def flash_v4():
    """The caches of DeepSeek-V4-Flash on H100 as vllm 0.33.0 has them."""
    window, long = spec(SLIDING, 37_440, 64, window=128, latent=True), {"block": 256, "latent": True}
    found = []
    for layer in range(43):
        found.append((layer, window))
        if layer >= 2 and layer % 2 == 0:
            found += [(layer, spec(FULL, page, **long)) for page in (8640, 37_440)]
            found += [(layer, spec(SLIDING, page, 4, window=8, latent=True)) for page in (8640, 32_832)]
        elif layer >= 2:
            found += [(layer, spec(FULL, 1728, **long)), (layer, spec(SLIDING, 32_832, 8, window=128, latent=True))]
    return tuple(Cache(layer=layer, spec=s) for layer, s in found)


def test_balanced_buckets_are_cut_into_equal_repeats():
    # vllm 0.33.0, DeepSeek-V4-Flash on H100: 22 repeats waste least, so 43 windows are two groups
    caches = flash_v4()
    groups = grouped(caches, packed=True)
    got = [(len(g.members), g.block_size, g.block_bytes) for g in groups]
    assert got == [
        (22, 64, 823_680),
        (21, 64, 786_240),
        (62, 256, 1_002_240),
        (42, 4, 870_912),
        (20, 8, 656_640),
    ]
    assert groups[0].layers == tuple(range(0, 43, 2))
    assert pool_block_bytes(groups, caches) == 1_002_240


def test_a_pool_block_is_whole_strides_of_every_cache():
    caches = layers(spec(FULL, 1000, stride=528), spec(SLIDING, 900, window=64, stride=288))
    groups = grouped(caches, packed=True)
    assert pool_block_bytes(groups, caches) == 3168


def test_every_kind_of_group_says_what_a_request_holds():
    d = Deployment(num_speculative_tokens=5, decode_context_parallel_size=4)
    (chunk,) = grouped(layers(spec(CHUNKED, 100, window=8192)))
    assert admitted(chunk, d, 1_000_000, 16_384) == (8192 + 16_384) // 16
    assert [decoding(chunk, d, t) for t in (None, 160, 100_000)] == [512, 10, 512]
    (ring,) = grouped(layers(spec(RING, 100, pages=1)))
    assert [admitted(ring, d, 1000, 1000), decoding(ring, d, None), decoding(ring, d, 1000)] == [1, 1, 1]
    # one state for each block, and the drafted ones' beside them; a shared context does not divide them
    (state,) = grouped(layers(spec(RECURRENT, 100, extra_pages=5, divides=False)))
    assert [decoding(state, d, t) for t in (0, 1, 17)] == [0, 6, 7]
    (full,) = grouped(layers(FULL_16))
    assert decoding(full, d, 65) == 2


KINDS = st.sampled_from(
    [
        FULL_16,
        WINDOW_16,
        spec(FULL, 32_768),
        spec(FULL, 8640, 64, latent=True),
        spec(FULL, 37_440, 64, latent=True, name="index"),
        spec(SLIDING, 19_008, 32, window=128, latent=True),
        spec(RING, 32_768, 64, pages=1),
        spec(RECURRENT, 9000, 64, pages=2),
    ]
)


@settings(max_examples=200, deadline=None)
@given(chosen=st.lists(KINDS, min_size=1, max_size=60), packed=st.booleans())
def test_every_cache_is_in_one_group_and_none_is_wider_than_the_block(chosen, packed):
    caches = layers(*chosen)
    try:
        groups = grouped(caches, packed=packed)
    except CannotGroup:
        assert not packed
        groups = own_pages(caches)
    held = sorted(member.layer for g in groups for member in g.caches())
    assert held == list(range(len(chosen)))
    block = pool_block_bytes(groups, caches)
    assert all(g.block_bytes <= block for g in groups)
    for g in groups:
        assert [m.layer for m in g.caches()] == sorted(m.layer for m in g.caches())


@settings(max_examples=100, deadline=None)
@given(chosen=st.lists(KINDS, min_size=1, max_size=60), tokens=st.integers(1, 100_000))
def test_whole_blocks_hold_at_least_the_own_pages(chosen, tokens):
    caches, d = layers(*chosen), Deployment()
    groups = grouped(caches, packed=True)
    block = pool_block_bytes(groups, caches)
    in_blocks = sum(decoding(g, d, tokens) * block for g in groups)
    own = sum(decoding(g, d, tokens) * g.block_bytes for g in own_pages(caches))
    assert in_blocks >= own


def test_a_stage_holds_its_own_members():
    (group,) = grouped(tuple(replace(c, layer=c.layer) for c in flash_v4() if c.spec.kind == FULL))
    part = group.on(range(10))
    assert part.layers == tuple(range(2, 10))
    assert part.block_bytes == part.page_bytes == 4 * (8640 + 37_440) + 4 * 1728


# What a request holds


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
