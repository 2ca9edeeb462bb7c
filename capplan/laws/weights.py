"""Weights: matrices, tables, experts, scales and what is built from them after loading."""

from __future__ import annotations

from capplan.units import Count, at_least, ceil_div, round_up


def matrix_bytes(*, n_rows: Count, n_columns: Count, weight_bits: Count) -> Count:
    """Bytes of one matrix of this rank's share.

        B = ceil(r * c * b / 8)

    n_rows       r  rows on this rank
    n_columns    c  columns on this rank
    weight_bits  b  bits per element
    returns      B  bytes, per rank

    Source: vllm, model_executor/layers/linear.py, LinearBase.create_weights.

    >>> matrix_bytes(n_rows=4096, n_columns=14336, weight_bits=16)
    117440512
    """
    return -(n_rows * n_columns * weight_bits // -8)


def share_per_rank(*, size: Count, tensor_parallel_size: Count) -> Count:
    """Elements of an extent that one rank keeps of those shared equally.

        s = n // t

    The engine refuses ranks that do not divide the extent before this is asked.

    size                  n  elements in the whole model
    tensor_parallel_size  t  ranks that share one layer
    returns               s  elements, per rank

    Source: vllm, distributed/utils.py, divide.

    >>> share_per_rank(size=25600, tensor_parallel_size=4)
    6400
    """
    return size // tensor_parallel_size


def vocab_rows_per_rank(*, vocab: Count, vocab_padding: Count, tensor_parallel_size: Count) -> Count:
    """Rows of the embedding or the output head that one rank keeps.

        r = ceil(V / p) * p // t

    The vocabulary is padded first and shared after.

    vocab                 V  words of the model
    vocab_padding         p  the engine pads the table to a multiple of this
    tensor_parallel_size  t  ranks that share one layer
    returns               r  rows, per rank

    Source: vllm, model_executor/layers/vocab_parallel_embedding.py, pad_vocab_size.

    >>> vocab_rows_per_rank(vocab=32_001, vocab_padding=64, tensor_parallel_size=2)
    16032
    """
    return round_up(vocab, vocab_padding) // tensor_parallel_size


def experts_per_rank(*, n_experts: Count, expert_parallel_size: Count) -> Count:
    """Routed experts on the fullest rank.

        e = ceil(E / w)

    The first E mod w ranks keep one more than the others.

    n_experts             E  routed experts of a layer
    expert_parallel_size  w  ranks that share them whole, 1 where experts are sliced
    returns               e  experts, per rank

    Source: vllm, model_executor/layers/fused_moe/expert_map_manager.py, determine_expert_map.

    >>> [experts_per_rank(n_experts=256, expert_parallel_size=w) for w in (1, 8, 72)]
    [256, 32, 4]
    """
    return ceil_div(n_experts, expert_parallel_size)


def rotary_cache_bytes(*, n_positions: Count, rotary_dim: Count, cache_bits: Count) -> Count:
    """Bytes of one table of sines and cosines.

        B = p * d * b / 8

    Half of the rotary elements have a sine and half a cosine, so a row is d elements.

    n_positions  p  rows of the table
    rotary_dim   d  rotated elements of a head
    cache_bits   b  bits per element
    returns      B  bytes, on each rank whole

    Source: vllm, model_executor/layers/rotary_embedding/base.py, _compute_cos_sin_cache.

    >>> rotary_cache_bytes(n_positions=131_072, rotary_dim=128, cache_bits=16)
    33554432
    """
    return -(n_positions * rotary_dim * cache_bits // -8)


def counter_buffer_bytes(
    *, max_num_batched_tokens: Count, n_heads: Count, decode_context_parallel_size: Count, multiprocessors: Count
) -> Count:
    """Bytes of the counters that FlashInfer's Blackwell attention keeps, once on a rank.

        B = 4 * ceil(max(T * h * c, m) / 8) * 8

    max_num_batched_tokens        T  tokens of one step
    n_heads                       h  query heads on this rank
    decode_context_parallel_size  c  ranks that share one context
    multiprocessors               m  of the device
    returns                       B  bytes, per rank

    Source: vllm, v1/attention/backends/flashinfer.py, _multi_ctas_kv_counter_buffer.

    >>> counter_buffer_bytes(
    ...     max_num_batched_tokens=16_384, n_heads=32, decode_context_parallel_size=1, multiprocessors=148
    ... )
    2097152
    """
    return 4 * round_up(at_least(max_num_batched_tokens * n_heads * decode_context_parallel_size, multiprocessors), 8)


def step_buffer_bytes(
    *,
    max_num_batched_tokens: Count,
    max_num_seqs: Count,
    token_elements: Count,
    sequence_elements: Count,
    other_elements: Count,
    element_bits: Count,
) -> Count:
    """Bytes of one buffer that is made for the engine's step while the model is built.

        B = ceil((s * x + S * y + z) * b / 8)

    max_num_batched_tokens  s  tokens of one step
    max_num_seqs            S  sequences at once
    token_elements          x  elements for each token
    sequence_elements       y  elements for each sequence
    other_elements          z  elements beside
    element_bits            b  bits per element
    returns                 B  bytes, per rank

    Source: vllm, models/deepseek_v32, topk_indices_buffer; model_executor/models/qwen3_vl.py, deepstack_input_embeds.

    >>> step_buffer_bytes(
    ...     max_num_batched_tokens=8192,
    ...     max_num_seqs=1024,
    ...     token_elements=2048,
    ...     sequence_elements=0,
    ...     other_elements=0,
    ...     element_bits=32,
    ... )
    67108864
    """
    elements = max_num_batched_tokens * token_elements + max_num_seqs * sequence_elements + other_elements
    return -(elements * element_bits // -8)


def ideal_weights_bytes(
    *, dense_bits: Count, tensor_parallel_size: Count, expert_bits: Count, expert_shards: Count
) -> Count:
    """Bytes of the matrices of one rank at ideal shares: nothing padded, one floor for all.

        B = (D / t + X / s) // 8

    Written over the common denominator t * s, so that half bytes and uneven shares add up before they are cut.

    dense_bits            D  bits of all matrices that ranks share by tensor parallelism
    tensor_parallel_size  t  ranks that share one layer
    expert_bits           X  bits of the experts that this rank takes part in
    expert_shards         s  ranks that slice each of them
    returns               B  bytes, per rank

    Source: BLIS latency kernel, internal/price/memory.go.

    >>> ideal_weights_bytes(dense_bits=8 * 10, tensor_parallel_size=3, expert_bits=8 * 10, expert_shards=3)
    6
    """
    shares = dense_bits * expert_shards + expert_bits * tensor_parallel_size
    return shares // (8 * tensor_parallel_size * expert_shards)


def replica_bytes(
    *, n_redundant_experts: Count, expert_bits: Count, expert_parallel_size: Count, expert_shards: Count
) -> Count:
    """Bytes of replicated experts on one rank, each rank's mean share.

        B = R * x / w / s // 8

    n_redundant_experts   R  replicas in each layer
    expert_bits           x  bits of one expert in each of its layers together
    expert_parallel_size  w  ranks that share experts whole, 1 where they are sliced
    expert_shards         s  ranks that slice each expert
    returns               B  bytes, per rank

    Source: BLIS latency kernel, internal/price/memory.go.

    >>> replica_bytes(
    ...     n_redundant_experts=8, expert_bits=62 * 14_155_776 * 8, expert_parallel_size=8, expert_shards=1
    ... )
    877658112
    """
    return n_redundant_experts * expert_bits // (8 * expert_parallel_size * expert_shards)


def physical_experts_per_rank(*, n_experts: Count, n_redundant_experts: Count, expert_parallel_size: Count) -> Count:
    """Experts on the fuller rank, replicas among them.

        e = ceil((E + R) / w)

    n_experts             E  routed experts of a layer
    n_redundant_experts   R  replicas in each layer
    expert_parallel_size  w  ranks that share them whole, 1 where experts are sliced
    returns               e  experts, per rank

    Source: BLIS latency kernel, internal/price/memory.go.

    >>> [physical_experts_per_rank(n_experts=256, n_redundant_experts=r, expert_parallel_size=8) for r in (0, 8)]
    [32, 33]
    """
    return -((n_experts + n_redundant_experts) // -expert_parallel_size)
