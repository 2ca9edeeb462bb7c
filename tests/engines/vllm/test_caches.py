"""Caches of a model's layers in groups, and what a request holds of the pool, against the engine's own planning."""

import pytest

from capplan.engines.pool import decoding, longest_length, request_blocks, steady_blocks
from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import Deployment

IN_FLIGHT = 16_384


def groups_of(model, **settings):
    """The groups of a plan on H200, where every kernel of these models runs as on H100."""
    model = load_model(model) if isinstance(model, str) else model
    return plan(model, Deployment(chip="h200", **settings)).kv_groups


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
    fp8 = {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8", "block_size": 64}
    assert groups_of("deepseek-ai/DeepSeek-V3", **fp8)[0].block_bytes == 2_248_704


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


def test_every_page_of_a_group_has_the_group_s_size():
    # vllm 0.33.0, Qwen3-Next on H100 tp 2: states and attention alike in pages of 589,824 bytes, 12 a block
    groups = groups_of("Qwen/Qwen3-Next-80B-A3B-Instruct", tensor_parallel_size=2)
    assert [(g.spec, g.page_bytes, g.block_bytes) for g in groups] == [
        *[("MambaSpec", 589_824, 7_077_888)] * 3,
        ("FullAttentionSpec", 589_824, 7_077_888),
    ]


def test_without_the_hybrid_manager_windows_become_full_caches():
    # vllm 0.33.0, Gemma 2 27B on H100 with --disable-hybrid-kv-cache-manager: 512 blocks a request of 6,029,312 bytes
    (group,) = groups_of("google/gemma-2-27b-it", disable_hybrid_kv_cache_manager=True)
    assert shape([group]) == [("FullAttentionSpec", tuple(range(46)), 131_072, None)]
    assert group.block_bytes == 6_029_312
    assert request_blocks((group,), Deployment(), 8192, IN_FLIGHT) == 512


@pytest.mark.parametrize(
    ("name", "settings", "tokens", "blocks"),
    [
        # vllm 0.33.0 on H100, blocks of one request of max_model_len
        ("meta-llama/Meta-Llama-3.1-8B", {}, 131_072, 8192),
        ("google/gemma-2-9b-it", {}, 8192, 1025),
        ("google/gemma-3-1b-it", {}, 32_768, 8390),
        ("google/gemma-3-1b-it", {"block_size": 32, "kv_cache_dtype": "fp8"}, 8192, 1798),
        ("mistralai/Mistral-7B-v0.1", {}, 32_768, 1281),
        ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 163_840, 1280),
    ],
)
def test_a_request_needs_as_many_blocks_as_the_engine_says(name, settings, tokens, blocks):
    d = Deployment(**settings)
    assert request_blocks(groups_of(name, **settings), d, tokens, IN_FLIGHT) == blocks


def test_steady_decode_holds_a_window_and_all_that_full_layers_keep():
    groups, d = groups_of("google/gemma-2-9b-it"), Deployment()
    assert [steady_blocks(groups, d, t) for t in (0, 17, 8192)] == [0, 2 + 2, 4096 // 16 + 1 + 8192 // 16]


def test_drafted_tokens_widen_a_window():
    groups = groups_of("google/gemma-2-9b-it")
    # a window of 4,096 in pages of 16: 257 pages, and one more for the three drafted tokens
    assert [decoding(groups[0], Deployment(num_speculative_tokens=n), 8192) for n in (None, 3)] == [257, 258]


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
    d = Deployment(max_model_len=limit, **settings)
    assert longest_length(groups_of(name, **settings), d, blocks, IN_FLIGHT) == longest
