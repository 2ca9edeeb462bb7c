"""Buffers that a sparse latent model allocates for itself: workspace lanes, index buffers, a drafter's states."""

from __future__ import annotations

from capplan.units import Count, at_least, ceil_div, round_up


def attention_lane_bytes(
    *,
    max_model_len: Count,
    tokens_per_record: Count,
    window: Count,
    max_num_batched_tokens: Count,
    prefill_chunk: Count,
    head_dim: Count,
    index_topk: Count,
    act_bits: Count,
    lane_alignment: Count,
) -> Count:
    """Bytes that attention over records of one length asks of the workspace.

        B = p * (ceil(L / r) + w + T) * d * b / 8 + T * ceil((k + w) / w) * w * 4 + T * 4

    Gathered records, their indices padded to whole windows, and a length for each token; each part is
    rounded to whole steps of the workspace.

    max_model_len           L  tokens of the longest request
    tokens_per_record       r  context tokens of one record
    window                  w  tokens that a layer looks back
    max_num_batched_tokens  T  tokens of one step
    prefill_chunk           p  requests that are gathered at once
    head_dim                d  elements of one record
    index_topk              k  records that one token attends to
    act_bits                b  bits per element
    lane_alignment          a  each part is a multiple of this
    returns                 B  bytes, per rank

    Source: vllm 0.33.0, models/deepseek_v4, the sparse attention's prefill workspace.

    >>> attention_lane_bytes(
    ...     max_model_len=131_072, tokens_per_record=1, window=128, max_num_batched_tokens=8192, prefill_chunk=4,
    ...     head_dim=512, index_topk=512, act_bits=16, lane_alignment=256,
    ... )
    591953920
    """
    gathered = prefill_chunk * (ceil_div(max_model_len, tokens_per_record) + window + max_num_batched_tokens) * head_dim
    indices = max_num_batched_tokens * round_up(index_topk + window, window) * 4
    records = round_up(ceil_div(gathered * act_bits, 8), lane_alignment)
    return records + round_up(indices, lane_alignment) + round_up(4 * max_num_batched_tokens, lane_alignment)


def index_lane_bytes(
    *,
    max_model_len: Count,
    tokens_per_record: Count,
    gather_factor: Count,
    index_key_bytes: Count,
    index_scale_bytes: Count,
    lane_alignment: Count,
) -> Count:
    """Bytes that the indexer over records of one length asks of the workspace.

        B = f * ceil(L / r) * x + f * ceil(L / r) * y

    max_model_len      L  tokens of the longest request
    tokens_per_record  r  context tokens of one record
    gather_factor      f  full-length requests that are gathered at once, a figure of the release
    index_key_bytes    x  bytes of one index key
    index_scale_bytes  y  bytes of its scale
    lane_alignment     a  each part is a multiple of this
    returns            B  bytes, per rank

    Source: vllm 0.33.0, config, sparse_mla_prefill_workspace_factor.

    >>> index_lane_bytes(
    ...     max_model_len=131_072, tokens_per_record=1, gather_factor=40, index_key_bytes=128, index_scale_bytes=4,
    ...     lane_alignment=256,
    ... )
    692060160
    """
    records = gather_factor * ceil_div(max_model_len, tokens_per_record)
    keys = round_up(records * index_key_bytes, lane_alignment)
    return keys + round_up(records * index_scale_bytes, lane_alignment)


def drafter_lane_bytes(
    *,
    window: Count,
    max_num_batched_tokens: Count,
    prefill_chunk: Count,
    head_dim: Count,
    act_bits: Count,
    lane_alignment: Count,
) -> Count:
    """Bytes that a drafter's windowed attention asks of its own lane of the workspace.

        B = p * (w + T) * d * b / 8 + T * w * 4 + T * 4

    window                  w  tokens that a layer looks back
    max_num_batched_tokens  T  tokens of one step
    prefill_chunk           p  requests that are gathered at once
    head_dim                d  elements of one record
    act_bits                b  bits per element
    lane_alignment          a  each part is a multiple of this
    returns                 B  bytes, per rank

    Source: vllm 0.33.0, models/deepseek_v4, the drafter's prefill workspace.

    >>> drafter_lane_bytes(
    ...     window=128, max_num_batched_tokens=8192, prefill_chunk=4, head_dim=512, act_bits=16, lane_alignment=256
    ... )
    38305792
    """
    records = ceil_div(prefill_chunk * (window + max_num_batched_tokens) * head_dim * act_bits, 8)
    indices = round_up(4 * max_num_batched_tokens * window, lane_alignment)
    return round_up(records, lane_alignment) + indices + round_up(4 * max_num_batched_tokens, lane_alignment)


def lane_bytes(*, one: Count, other: Count) -> Count:
    """Bytes of a lane that serves two requests in turn: the larger one.

        B = max(x, y)

    one      x  bytes of one request
    other    y  bytes of the other
    returns  B  bytes, per rank

    Source: vllm 0.33.0, v1/worker/workspace.py, WorkspaceManager.

    >>> lane_bytes(one=591_953_920, other=692_060_160)
    692060160
    """
    return at_least(one, other)


def choices_bytes(*, max_num_batched_tokens: Count, choices: Count) -> Count:
    """Bytes of a buffer of places that each token of a step chooses: the best records, or candidate blocks.

        B = 4 * T * k

    max_num_batched_tokens  T  tokens of one step
    choices                 k  places chosen for one token
    returns                 B  bytes, per rank

    Source: vllm 0.33.0, models/deepseek_v4, topk_indices_buffer and the candidate blocks' buffer.

    >>> choices_bytes(max_num_batched_tokens=8192, choices=512)
    16777216
    """
    return 4 * max_num_batched_tokens * choices


def drafter_states_bytes(*, max_num_batched_tokens: Count, streams: Count, hidden: Count, act_bits: Count) -> Count:
    """Bytes of the hidden states that a drafter reads, one for each token of a step and each stream of the model.

        B = T * m * e * b / 8

    max_num_batched_tokens  T  tokens of one step
    streams                 m  hidden states that the model keeps of one token
    hidden                  e  elements of one of them
    act_bits                b  bits per element
    returns                 B  bytes, per rank

    Source: vllm 0.33.0, models/deepseek_v4, the drafter's hidden states.

    >>> drafter_states_bytes(max_num_batched_tokens=8192, streams=4, hidden=5120, act_bits=16)
    335544320
    """
    return ceil_div(max_num_batched_tokens * streams * hidden * act_bits, 8)
