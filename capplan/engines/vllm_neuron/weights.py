"""What one logical core holds of a model: every stored tensor at the served width, split over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from capplan.engines.vllm.hold import rope_rows
from capplan.laws import kv_cache, weights
from capplan.model import Extent, Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Tensors of one rank: their bytes, what they are, and what rotary tables would add where a class keeps them."""

    bytes: int
    parts: tuple[tuple[str, int], ...]
    rotary_bytes: int


@lru_cache(maxsize=4096)
def loaded(model: Model, *, tensor_parallel_size: int, expert_shards: int, act_bits: int) -> Loaded:
    """What a rank holds after loading a model that is not quantized.

    Every tensor counts, a tied table once; rotary tables are computed as they are needed and stored nowhere.

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _get_byte_used_from_model.
    """
    sizes: dict[str, int] = {}
    for tensor in model.tensors:
        rows = sum(_share(e, tensor_parallel_size, expert_shards) for e in tensor.rows)
        columns = 1 if tensor.columns is None else _share(tensor.columns, tensor_parallel_size, expert_shards)
        bits = tensor.bits or act_bits
        each = int(weights.matrix_bytes(n_rows=rows, n_columns=columns, weight_bits=bits)) * (tensor.n_experts or 1)
        sizes[tensor.line] = sizes.get(tensor.line, 0) + each * tensor.count
    rotary = sum(
        int(weights.rotary_cache_bytes(n_positions=rope_rows(rope), rotary_dim=rope.rotary_dim, cache_bits=act_bits))
        for rope in model.ropes
    )
    return Loaded(bytes=sum(sizes.values()), parts=tuple(sizes.items()), rotary_bytes=rotary)


def _share(extent: Extent, t: int, expert_shards: int) -> int:
    """One extent's share on a rank; heads are repeated beyond their number, a vocabulary is shared in whole rows."""
    size = extent.size
    if extent.split == "whole":
        return size
    if extent.split == "vocab":
        return int(weights.vocab_rows_per_rank(vocab=size, vocab_padding=t, tensor_parallel_size=t))
    if extent.split == "kv_heads":
        return extent.unit * int(kv_cache.kv_heads_per_rank(n_kv_heads=size // extent.unit, tensor_parallel_size=t))
    ranks = expert_shards if extent.split == "expert_columns" else t
    return int(weights.share_per_rank(size=size, tensor_parallel_size=ranks))
