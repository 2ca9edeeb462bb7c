"""The pool of blocks: layers in groups, and what a request holds of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.deployment import Deployment
from capplan.laws import kv_cache
from capplan.model import Attention, Model
from capplan.units import Count, Flag, at_most, ceil_div, choose, every, some

SPECS = {"full": "FullAttentionSpec", "sliding": "SlidingWindowSpec", "latent": "MLAAttentionSpec"}
"""The engine's class of cache for each kind of attention."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Layers that share a block table: which, their class, one layer's page, and what a request holds of it."""

    layers: tuple[int, ...]
    spec: str
    kind: str
    block_size: int
    page_bytes: int
    window: int | None

    @property
    def block_bytes(self) -> int:
        """What this group's layers fill of one pool block."""
        return len(self.layers) * self.page_bytes


def kv_groups(model: Model, d: Deployment, kv_bits: int) -> tuple[Group, ...]:
    """Layers grouped by the kind of cache they keep, as the engine shares one pool among them.

    Caches of one kind are one group.  Of several kinds, each becomes groups of one size: the
    fewest layers of any kind, or the most where that is less than 1.5 times the fewest; a kind's
    layers are dealt to its groups in turn.

    Source: vllm, v1/core/kv_cache_planning.py, get_kv_cache_groups.
    """
    if d.block_size is None:
        raise ValueError("groups need a block size")
    kinds = list(model.attention)
    if d.disable_hybrid_kv_cache_manager and len(kinds) > 1:
        layers = tuple(sorted(layer for a in kinds for layer in a.layers))
        kinds = [replace(kinds[0], kind="full", layers=layers)]
    sizes = [len(a.layers) for a in kinds]
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    found = []
    for a in kinds:
        page = _page_bytes(a, d, kv_bits)
        n_groups = 1 if len(kinds) == 1 else -(-len(a.layers) // size)
        for i in range(n_groups):
            found.append(
                Group(
                    layers=a.layers[i::n_groups],
                    spec=SPECS[a.kind],
                    kind=a.kind,
                    block_size=d.block_size,
                    page_bytes=page,
                    window=a.window if a.kind == "sliding" else None,
                )
            )
    return tuple(found)


def _page_bytes(a: Attention, d: Deployment, kv_bits: int) -> int:
    heads = kv_cache.kv_heads_per_rank(n_kv_heads=a.n_kv_heads, tensor_parallel_size=d.tensor_parallel_size)
    page = kv_cache.page_bytes(
        block_size=d.block_size or 1, n_kv_heads=heads, head_dim=a.head_dim, head_dim_v=a.head_dim_v, kv_bits=kv_bits
    )
    return int(page)


def request_blocks(groups: tuple[Group, ...], d: Deployment, tokens: Count, in_flight: Count) -> Count:
    """Blocks that one request of a length needs at admission, over all groups."""
    total: Count = 0
    for g in groups:
        if g.window is None:
            total = total + kv_cache.full_request_blocks(
                context_tokens=tokens,
                block_size=g.block_size,
                decode_context_parallel_size=d.decode_context_parallel_size,
            )
        else:
            total = total + kv_cache.window_admission_blocks(
                context_tokens=tokens, window=g.window, max_in_flight_tokens=in_flight, block_size=g.block_size
            )
    return total


def steady_blocks(groups: tuple[Group, ...], d: Deployment, tokens: Count, *, windows: bool | None = None) -> Count:
    """Blocks that one request of a length holds in steady decode; of windowed groups or of the others where asked."""
    total: Count = 0 * tokens
    for g in groups:
        if windows is not None and windows != (g.window is not None):
            continue
        if g.window is None:
            total = total + kv_cache.full_request_blocks(
                context_tokens=tokens,
                block_size=g.block_size,
                decode_context_parallel_size=d.decode_context_parallel_size,
            )
        else:
            total = total + kv_cache.window_steady_blocks(
                context_tokens=tokens, window=g.window, block_size=g.block_size
            )
    return total


def longest_length(groups: tuple[Group, ...], d: Deployment, kv_blocks: Count, in_flight: Count) -> Count:
    """The longest length, up to max_model_len, whose request and the null block fit into the pool; 0 where none does.

    Source: vllm, v1/core/kv_cache_planning.py, _estimate_max_model_len_from_groups.
    """
    limit = d.max_model_len
    if limit is None:
        raise ValueError("a resolved deployment has a length")
    if all(g.window is None for g in groups):
        most = kv_cache.tokens_of_blocks(
            kv_blocks=kv_blocks,
            block_size=groups[0].block_size,
            decode_context_parallel_size=d.decode_context_parallel_size,
        )
        return at_most(most, limit)

    def fits(length: Count) -> Flag:
        return request_blocks(groups, d, length, in_flight) <= kv_blocks - 1

    if every(fits(limit)):
        return limit
    low: Count = 0 * kv_blocks + 0 * limit
    high: Count = limit + low
    while some(low < high):
        middle = ceil_div(low + high, 2)
        good = fits(middle)
        low, high = choose(good, middle, low), choose(good, high, middle - 1)
    return low


def n_batches(d: Deployment) -> int:
    """Steps in flight at once: one for each stage, one more with asynchronous scheduling.

    Source: vllm, config/vllm.py, VllmConfig.max_concurrent_batches.
    """
    return d.pipeline_parallel_size + (1 if d.async_scheduling else 0)
