"""What the engine keeps beside weights and cache, against its code, its answers and its start-up records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.laws.runtime import (
    capture_ceiling,
    experts_workspace_bytes,
    in_flight_tokens,
    padded_experts_workspace_bytes,
    prompt_mask_bytes,
    sampling_counts_bytes,
)
from capplan.units import GIB, show_bytes


@pytest.mark.parametrize(("vocab", "shown"), [(128_256, "0.49 GiB"), (151_936, "0.58 GiB"), (262_144, "1.00 GiB")])
def test_1024_requests_count_each_word_of_the_vocabulary(vocab, shown):
    # vllm 0.33.0, v1/worker/gpu/sample/penalties.py: an int32 for each request and word, read at H100's 1,024 requests
    assert show_bytes(sampling_counts_bytes(max_num_seqs=1024, vocab=vocab)) == shown


def test_a_prompt_is_masked_in_words_of_32():
    # vllm 0.33.0, v1/worker/gpu/sample/penalties.py: int32 words, so 4,748 for the 151,936 words of Qwen3
    assert prompt_mask_bytes(max_num_seqs=1024, vocab=151_936) == 1024 * 4748 * 4
    assert [prompt_mask_bytes(max_num_seqs=1, vocab=vocab) for vocab in (31, 32, 33)] == [4, 4, 8]


def test_the_workspaces_of_qwen3_235b_are_one_gib_of_what_stayed():
    # start-up record vl-069, four ranks: 56.89 GiB consumed, 55.19 of them weights; the two workspaces explain 1.00
    step = {"max_num_batched_tokens": 8192, "top_k": 8, "hidden": 4096, "act_bits": 16}
    kept = experts_workspace_bytes(**step, expert_intermediate=1536 // 4)
    assert show_bytes(kept) == "1.00 GiB"
    assert kept < (56.89 - 55.19) * GIB


@pytest.mark.parametrize("inner", [1023, 1024, 1025, 2047, 2048, 2049])
def test_a_workspace_is_as_wide_as_the_wider_of_its_two_uses(inner):
    # vllm 0.33.0, TritonExperts.workspace_shapes: max(inner, hidden) and max(2 * inner, hidden) for each chosen expert
    sizes = {"max_num_batched_tokens": 10, "top_k": 4, "hidden": 2048, "expert_intermediate": inner}
    elements = 10 * 4 * (max(inner, 2048) + max(2 * inner, 2048))
    assert experts_workspace_bytes(**sizes, act_bits=16) == 2 * elements


def test_deepgemm_pads_the_rows_of_each_local_expert():
    # vllm 0.33.0, DeepGemmExperts.workspace_shapes and compute_aligned_M, DeepSeek-V3 with 32 experts on a rank:
    # 65,536 + 32 * 127 = 69,600 rows, raised to 69,632; bytes first, then 16-bit values
    step = {"max_num_batched_tokens": 8192, "top_k": 8, "hidden": 7168, "expert_intermediate": 2048}
    kept = padded_experts_workspace_bytes(**step, n_local_experts=32, row_alignment=128, act_bits=16)
    assert kept == 69_632 * 7168 * (1 + 2)


def test_padded_rows_step_at_the_alignment():
    def rows(tokens):
        sizes = {"top_k": 1, "hidden": 1, "expert_intermediate": 1, "n_local_experts": 1, "row_alignment": 128}
        return padded_experts_workspace_bytes(max_num_batched_tokens=tokens, **sizes, act_bits=8) // (1 + 2)

    assert [rows(tokens) for tokens in (1, 2, 129, 130)] == [128, 256, 256, 384]


@pytest.mark.parametrize(
    ("seqs", "query", "limit", "tokens", "ceiling"),
    [
        # golden vectors of the BLIS kernel, new.go, after vllm's _set_cudagraph_sizes
        (256, 1, 512, 8192, 512),
        (128, 1, 512, 8192, 256),
        (16, 4, 512, 8192, 128),  # three draft tokens beside the sampled one
        (8, 1, 512, 8192, 16),
        (1024, 1, 512, 100, 100),
        (1024, 1, 1024, 16_384, 1024),  # B200
        (1024, 1, 512, 8192, 512),  # vllm 0.33.0 on H100: max_cudagraph_capture_size
    ],
)
def test_the_largest_captured_step(seqs, query, limit, tokens, ceiling):
    step = {"max_num_seqs": seqs, "decode_query_tokens": query, "max_num_batched_tokens": tokens}
    assert capture_ceiling(**step, largest_capture=limit) == ceiling


@pytest.mark.parametrize(
    ("tokens", "batches", "in_flight"),
    [
        # vllm 0.33.0, max_in_flight_tokens
        (8192, 2, 16_384),  # Llama-3.1-8B on H100
        (16_384, 2, 32_768),  # the same for a program that makes an LLM object
        (8192, 3, 24_576),  # Gemma 2 9B in two pipeline stages
        (2048, 2, 4096),  # Qwen3-8B on A100
    ],
)
def test_a_step_is_in_flight_for_each_batch(tokens, batches, in_flight):
    assert in_flight_tokens(max_num_batched_tokens=tokens, n_batches=batches) == in_flight


@given(seqs=st.integers(1, 2048), vocab=st.integers(1, 2**18))
def test_sampling_state_is_linear_in_requests_and_32_words_share_a_mask(seqs, vocab):
    counts, mask = (law(max_num_seqs=seqs, vocab=vocab) for law in (sampling_counts_bytes, prompt_mask_bytes))
    assert counts == seqs * sampling_counts_bytes(max_num_seqs=1, vocab=vocab)
    assert mask == seqs * prompt_mask_bytes(max_num_seqs=1, vocab=vocab)
    assert counts <= 32 * mask < counts + 128 * seqs


@given(tokens=st.integers(1, 16_384), inner=st.integers(1, 4096), experts=st.integers(1, 256))
def test_padding_never_saves_rows(tokens, inner, experts):
    step = {"max_num_batched_tokens": tokens, "top_k": 8, "hidden": 2048, "expert_intermediate": inner, "act_bits": 8}
    padded = padded_experts_workspace_bytes(**step, n_local_experts=experts, row_alignment=128)
    assert padded >= experts_workspace_bytes(**step)
