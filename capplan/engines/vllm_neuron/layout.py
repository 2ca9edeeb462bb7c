"""The cache of one rank: pages, blocks, the null block, and the requests of full length that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.laws import kv_cache, neuron
from capplan.model import DTYPE_BITS, Model
from capplan.settings.deployment import Deployment
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of all layers of one rank, and the page of its model where a law gave it."""

    bytes: int
    page: Page | None = None


def geometry_of(model: Model, kv_bits: int) -> Geometry:
    """What the cache of a model keeps of a token, each layer alike."""
    first = model.attention[0]
    return Geometry(
        n_layers=sum(len(a.layers) for a in model.attention),
        n_kv_heads=first.n_kv_heads,
        head_dim=first.head_dim,
        kv_bits=kv_bits,
    )


def block(model: Model | None, draft: Model | None, d: Deployment) -> Block | None:
    """One block as it was stated, or of all layers, those of a draft among them; None where no law has it."""
    if d.bytes_per_block is not None:
        return Block(bytes=d.bytes_per_block) if d.bytes_per_block >= 1 else None
    size, t, models = d.block_size or 0, d.tensor_parallel_size, [m for m in (model, draft) if m is not None]
    if size < 1 or t < 1 or model is None or any(m.latent or not m.attention for m in models):
        return None
    pages = []
    for m in models:
        form = d.kv_cache_dtype if d.kv_cache_dtype not in (None, "auto") else None
        own = d.dtype if d.dtype is not None else m.dtype
        bits = ELEMENT_BITS.get(form) if form is not None else DTYPE_BITS.get(own)
        if bits is None:
            return None
        pages.append(page(geometry_of(m, bits), block_size=size, tensor_parallel_size=t))
    return Block(bytes=sum(p.block_bytes for p in pages), page=pages[0])


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
