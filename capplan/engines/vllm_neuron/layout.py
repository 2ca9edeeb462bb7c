"""The cache of one rank: pages, blocks, the null block, and the requests of full length that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.laws import kv_cache, neuron
from capplan.units import Count, at_least

ELEMENT_BITS = {
    "fp8": 8,
    "fp8_e4m3": 8,
    "bfloat16": 16,
    "bf16": 16,
    "float16": 16,
    "fp16": 16,
    "float32": 32,
    "fp32": 32,
}
"""Widths of the cache formats that have a law here; auto is the model's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """What a cache keeps of a token: layers, heads in the whole model, elements of one head, bits of one element."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    kv_bits: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One block of one rank: its heads, their copies among ranks, and its bytes in one layer and in all."""

    kv_heads_per_rank: int
    kv_head_copies: int
    page_bytes: int
    block_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Blocks of one rank, and the requests of full length that they hold.

    `requests_admitted` is the scheduler's figure, which counts the null block; `requests_held` leaves it out.
    """

    kv_blocks: Count
    allocatable_blocks: Count
    request_blocks: Count
    requests_admitted: Count
    requests_held: Count


def page(g: Geometry, *, block_size: int, tensor_parallel_size: int) -> Page:
    """One block of one rank, every layer alike and every token kept.

    Source: vllm_neuron, vllm/attention/attn.py: the shape of a layer's cache.
    """
    heads = kv_cache.kv_heads_per_rank(n_kv_heads=g.n_kv_heads, tensor_parallel_size=tensor_parallel_size)
    size = kv_cache.page_bytes(
        block_size=block_size, n_kv_heads=heads, head_dim=g.head_dim, head_dim_v=g.head_dim, kv_bits=g.kv_bits
    )
    copies = neuron.kv_head_copies(n_kv_heads=g.n_kv_heads, tensor_parallel_size=tensor_parallel_size)
    return Page(
        kv_heads_per_rank=int(heads),
        kv_head_copies=int(copies),
        page_bytes=int(size),
        block_bytes=int(size) * g.n_layers,
    )


def request_blocks(*, max_model_len: Count, block_size: int, contexts: int = 1) -> Count:
    """Blocks that a request of full length fills."""
    return kv_cache.full_request_blocks(
        context_tokens=max_model_len, block_size=block_size, decode_context_parallel_size=contexts
    )


def pool(*, budget_bytes: Count, block_bytes: int, request_blocks: Count, override: Count | None = None) -> Pool:
    """The pool that a budget gives, or the number of blocks that was stated instead."""
    blocks = kv_cache.whole_blocks(budget_bytes=budget_bytes, block_bytes=block_bytes) if override is None else override
    return Pool(
        kv_blocks=blocks,
        allocatable_blocks=at_least(blocks - 1, 0),
        request_blocks=request_blocks,
        requests_admitted=neuron.requests_admitted(kv_blocks=blocks, request_blocks=request_blocks),
        requests_held=kv_cache.requests_beside_null_block(kv_blocks=blocks, request_blocks=request_blocks),
    )
