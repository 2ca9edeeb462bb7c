"""The caches of a model's layers: what one page of each holds, for the pool to group."""

from __future__ import annotations

from math import lcm

from capplan.engines.declared import state_page_bytes
from capplan.engines.pool import CHUNKED, FULL, RECURRENT, SLIDING, Cache, Group, Spec, grouped, speculative_tokens
from capplan.engines.release import Backend, capability_matches
from capplan.engines.vllm.case import Case
from capplan.laws import kv_cache
from capplan.model import DTYPE_BITS, Attention, Cached, State
from capplan.settings.deployment import Deployment
from capplan.units import round_up

CLASSES = {
    "full": ("FullAttentionSpec", FULL),
    "sliding": ("SlidingWindowSpec", SLIDING),
    "chunked": ("ChunkedLocalAttentionSpec", CHUNKED),
    "latent": ("MLAAttentionSpec", FULL),
}
"""The engine's class of cache for each kind of attention, and how its pages follow a request."""

ENTRY_BYTES = {"fp8_ds_mla": 656}
"""Bytes of one token in formats of the cache that are laid out as a whole."""


def model_caches(c: Case, backend: Backend, kv_bits: int) -> tuple[Cache, ...]:
    """Every cache of a model's layers, in the order of the layers.

    Source: vllm, model_executor/layers/attention, get_kv_cache_spec of each layer.
    """
    found = []
    for a in c.model.attention:
        spec, kind = CLASSES[a.kind]
        own = Spec(
            spec=spec,
            kind=kind,
            block_size=_block(c.d),
            page_bytes=_block(c.d) * token_bytes(c, a, kv_bits),
            latent=a.kind == "latent",
            window=a.window if kind in (SLIDING, CHUNKED) else None,
        )
        found += [Cache(layer=i, spec=own) for i in a.layers]
    for cached in c.model.layer_caches:
        found += [Cache(layer=i, spec=_stated(cached, c)) for i in cached.layers]
    for state in c.model.recurrent:
        found += [Cache(layer=i, spec=_recurrent(c, state)) for i in state.layers]
    # Of one layer's caches the index is made before the attention that it serves.
    return tuple(sorted(found, key=lambda cache: (cache.layer, cache.spec.name == "attention")))


def model_groups(c: Case, caches: tuple[Cache, ...]) -> tuple[Group, ...]:
    """A model's caches grouped as the engine shares one pool among them."""
    packed = any(cached.alignment > 1 for cached in c.model.layer_caches)
    return grouped(caches, hybrid=not c.d.disable_hybrid_kv_cache_manager, packed=packed)


def token_bytes(c: Case, a: Attention, kv_bits: int) -> int:
    """Bytes of one token in the cache of one attention layer."""
    entry = ENTRY_BYTES.get(c.d.kv_cache_dtype or "")
    if entry is not None and a.kind == "latent":
        return entry
    heads = kv_cache.kv_heads_per_rank(n_kv_heads=a.n_kv_heads, tensor_parallel_size=c.d.tensor_parallel_size)
    page = kv_cache.page_bytes(
        block_size=1, n_kv_heads=heads, head_dim=a.head_dim, head_dim_v=a.head_dim_v, kv_bits=kv_bits
    )
    return int(page)


def _block(d: Deployment) -> int:
    if d.block_size is None:
        raise ValueError("caches need a block size")
    return d.block_size


def _stated(cached: Cached, c: Case) -> Spec:
    """A cache that a part's file states."""
    block = cached.block_size or _block(c.d)
    page = -(block // -cached.tokens_per_entry) * cached.entry_bytes
    return Spec(
        spec=cached.spec,
        kind=SLIDING if cached.kind == "sliding" else FULL,
        block_size=block,
        page_bytes=int(round_up(page, cached.alignment)),
        name=cached.name,
        latent=True,
        window=cached.window,
        stride=cached.alignment,
    )


def _recurrent(c: Case, state: State) -> Spec:
    """The state of a recurrent layer: a page holds one whole, and a request holds a few.

    Source: vllm, v1/kv_cache_interface.py, MambaSpec.max_memory_usage_bytes.
    """
    aligned = bool(c.d.enable_prefix_caching)
    checkpoints = state.checkpoints if exports(c, state) else 0
    return Spec(
        spec="MambaSpec",
        kind=RECURRENT,
        block_size=_block(c.d),
        page_bytes=state_bytes(c, state),
        name="state",
        pages=(2 + checkpoints if aligned else 1) + speculative_tokens(c.d),
        divides=False,
        form=state.kind,
    )


def exports(c: Case, state: State) -> bool:
    """Whether the kernels of a recurrent layer hand out states from inside a prefill, which prefixes then keep."""
    return capability_matches(state.exports_on, c.chip.capability)


def state_bytes(c: Case, state: State) -> int:
    """Bytes of one layer's recurrent state on a rank."""
    conv, temporal = (bits or DTYPE_BITS[c.dtype] for bits in state.bits)
    ranks, drafted = c.d.tensor_parallel_size, speculative_tokens(c.d)
    return state_page_bytes(state.law, state.sizes, (conv, temporal), ranks=ranks, drafted=drafted)


def hybrid_block_size(c: Case, block: int, backend: Backend, kv_bits: int) -> int:
    """The attention block of a model with recurrent layers: a page of it is at least a page of states.

    block    what was asked, or the kernels' own
    returns  tokens of a block

    Source: vllm, platforms/interface.py, _align_hybrid_block_size.
    """
    a = next((a for a in c.model.attention if a.kind in ("full", "latent")), None)
    if a is None:
        return block
    align = max(backend.block_multiple, block)
    if a.kind == "latent":
        align = max(align, 128)
    if c.d.enable_prefix_caching:
        align = lcm(align, *(state.chunk for state in c.model.recurrent if exports(c, state)))
    page = max(state_bytes(c, state) for state in c.model.recurrent)
    needed = align * -(page // -(align * token_bytes(c, a, kv_bits)))
    return max(block, int(round_up(needed, backend.block_multiple)))
