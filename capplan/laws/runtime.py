"""What the engine keeps beside weights and cache: sampling state, kernel workspaces, captured sizes."""

from __future__ import annotations

from capplan.units import Count, at_least, at_most, ceil_div, round_up


def sampling_counts_bytes(*, max_num_seqs: Count, vocab: Count) -> Count:
    """Bytes of the sampler's count of each word in each request's output.

        B = 4 * S * V

    Not shared among ranks: often the largest thing that no log line names.

    max_num_seqs  S  requests of one step
    vocab         V  words of the model
    returns       B  bytes, per rank

    Source: vllm, v1/worker/gpu/sample/penalties.py, output_bin_counts.

    >>> sampling_counts_bytes(max_num_seqs=1024, vocab=151_936)
    622329856
    """
    return 4 * max_num_seqs * vocab


def prompt_mask_bytes(*, max_num_seqs: Count, vocab: Count) -> Count:
    """Bytes of the sampler's mask of the words in each request's prompt.

        B = 4 * S * ceil(V / 32)

    max_num_seqs  S  requests of one step
    vocab         V  words of the model, one bit each
    returns       B  bytes, per rank

    Source: vllm, v1/worker/gpu/sample/penalties.py, prompt_bin_mask.

    >>> prompt_mask_bytes(max_num_seqs=1024, vocab=151_936)
    19447808
    """
    return 4 * max_num_seqs * ceil_div(vocab, 32)


def experts_workspace_bytes(
    *, max_num_batched_tokens: Count, top_k: Count, hidden: Count, expert_intermediate: Count, act_bits: Count
) -> Count:
    """Bytes of the two workspaces that a fused experts kernel keeps.

        B = T * k * (max(i, e) + max(2 * i, e)) * b / 8

    max_num_batched_tokens  T  tokens of one step
    top_k                   k  experts that one token visits
    hidden                  e  elements of one hidden state
    expert_intermediate     i  inner elements of an expert on this rank
    act_bits                b  bits per element
    returns                 B  bytes, per rank

    Source: vllm, model_executor/layers/fused_moe/experts/triton_moe.py, TritonExperts.workspace_shapes.

    >>> experts_workspace_bytes(max_num_batched_tokens=8192, top_k=8, hidden=4096, expert_intermediate=384, act_bits=16)
    1073741824
    """
    i = expert_intermediate
    return ceil_div(max_num_batched_tokens * top_k * (at_least(i, hidden) + at_least(2 * i, hidden)) * act_bits, 8)


def padded_experts_workspace_bytes(
    *,
    max_num_batched_tokens: Count,
    top_k: Count,
    hidden: Count,
    expert_intermediate: Count,
    n_local_experts: Count,
    row_alignment: Count,
    act_bits: Count,
) -> Count:
    """Bytes of the two workspaces of a kernel that pads each local expert's rows.

        B = m * max(i, e) + m * max(2 * i, e) * b / 8,  m = ceil((T * k + x * (a - 1)) / a) * a

    The first holds quantized activations, one byte each.

    max_num_batched_tokens  T  tokens of one step
    top_k                   k  experts that one token visits
    hidden                  e  elements of one hidden state
    expert_intermediate     i  inner elements of an expert on this rank
    n_local_experts         x  experts on this rank
    row_alignment           a  rows of an expert are padded to a multiple of this
    act_bits                b  bits per element of the activations
    returns                 B  bytes, per rank

    Source: vllm, model_executor/layers/fused_moe/experts/deep_gemm_moe.py, DeepGemmExperts.workspace_shapes.

    >>> padded_experts_workspace_bytes(
    ...     max_num_batched_tokens=8192, top_k=8, hidden=7168, expert_intermediate=2048, n_local_experts=32,
    ...     row_alignment=128, act_bits=16,
    ... )
    1497366528
    """
    i = expert_intermediate
    rows = round_up(max_num_batched_tokens * top_k + n_local_experts * (row_alignment - 1), row_alignment)
    return rows * at_least(i, hidden) + ceil_div(rows * at_least(2 * i, hidden) * act_bits, 8)


def capture_ceiling(
    *, max_num_seqs: Count, decode_query_tokens: Count, largest_capture: Count, max_num_batched_tokens: Count
) -> Count:
    """The largest step that is captured as a graph, in tokens, where nobody asks for another.

        C = min(2 * S * q, M, T)

    max_num_seqs            S  requests of one step
    decode_query_tokens     q  tokens that one request decodes at a time
    largest_capture         M  the release's limit on this chip
    max_num_batched_tokens  T  tokens of one step
    returns                 C  tokens

    Source: vllm, config/vllm.py, VllmConfig._set_cudagraph_sizes.

    >>> capture_ceiling(max_num_seqs=1024, decode_query_tokens=1, largest_capture=512, max_num_batched_tokens=8192)
    512
    """
    return at_most(at_most(2 * max_num_seqs * decode_query_tokens, largest_capture), max_num_batched_tokens)


def in_flight_tokens(*, max_num_batched_tokens: Count, n_batches: Count) -> Count:
    """Tokens that may be scheduled and not yet settled.

        f = n * T

    max_num_batched_tokens  T  tokens of one step
    n_batches               n  steps in flight at once
    returns                 f  tokens

    Source: vllm, config/vllm.py, VllmConfig.max_in_flight_tokens.

    >>> in_flight_tokens(max_num_batched_tokens=8192, n_batches=2)
    16384
    """
    return n_batches * max_num_batched_tokens


def graphs_bytes(*, floor_bytes: Count, token_bytes: Count, captured_tokens: Count) -> Count:
    """Bytes of one family of captured graphs.

        B = f + c * C

    floor_bytes      f  what the family costs however small its graphs are
    token_bytes      c  what one token of the largest graph adds
    captured_tokens  C  the largest captured step of the family
    returns          B  bytes, per rank

    Source: BLIS latency kernel, the Memory page.

    >>> graphs_bytes(floor_bytes=100_000_000, token_bytes=500_000, captured_tokens=512)
    356000000
    """
    return floor_bytes + token_bytes * captured_tokens


def before_budget_bytes(*, communicator_bytes: Count, workspace_bytes: Count) -> Count:
    """Bytes that are held before the engine first looks at free memory.

        B = n + w

    communicator_bytes  n  of the ranks' communicator, 0 where nothing is shared
    workspace_bytes     w  of the engine and its libraries
    returns             B  bytes, per rank

    Source: aiconfigurator-core 0.12.0, misc.nccl_mem and misc.other_mem of its system descriptors.

    >>> before_budget_bytes(communicator_bytes=411_041_792, workspace_bytes=3_758_096_384)
    4169138176
    """
    return communicator_bytes + workspace_bytes
