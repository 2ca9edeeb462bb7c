"""What one logical core holds of a model: every stored tensor at the served width, split over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from capplan.engines.base import Line, exact
from capplan.engines.frame import Held
from capplan.engines.vllm.hold import rope_rows
from capplan.laws import kv_cache, weights
from capplan.model import DTYPE_BITS, Extent, Model
from capplan.settings.deployment import Deployment


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Tensors of one rank, their bytes by sub-line and in all; and of the rotary tables that some classes keep."""

    held: tuple[Held, ...]
    parts: tuple[tuple[str, int], ...]
    bytes: int
    rotary_bytes: int


@lru_cache(maxsize=4096)
def loaded(model: Model, *, tensor_parallel_size: int, expert_shards: int, act_bits: int) -> Loaded:
    """What a rank holds after loading a model that is not quantized.

    Every tensor counts, a tied table once; rotary tables are computed as they are needed and stored nowhere.

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _get_byte_used_from_model.
    """
    held = []
    for tensor in model.tensors:
        rows = sum(_share(e, tensor_parallel_size, expert_shards) for e in tensor.rows)
        columns = () if tensor.columns is None else (_share(tensor.columns, tensor_parallel_size, expert_shards),)
        bits, experts = tensor.bits or act_bits, (tensor.n_experts,) if tensor.n_experts else ()
        one = weights.matrix_bytes(n_rows=rows, n_columns=columns[0] if columns else 1, weight_bits=bits)
        held.append(
            Held(
                name=tensor.name,
                line=tensor.line,
                shape=(*experts, rows, *columns),
                bits=bits,
                count=tensor.count,
                bytes_each=int(one) * (tensor.n_experts or 1),
                split=tensor.split,
            )
        )
    rotary = sum(
        int(weights.rotary_cache_bytes(n_positions=rope_rows(rope), rotary_dim=rope.rotary_dim, cache_bits=act_bits))
        for rope in model.ropes
    )
    sizes: dict[str, int] = {}
    for h in held:
        sizes[h.line] = sizes.get(h.line, 0) + h.bytes
    return Loaded(held=tuple(held), parts=tuple(sizes.items()), bytes=sum(sizes.values()), rotary_bytes=rotary)


def held(model: Model | None, draft: Model | None, asked: Deployment) -> tuple[tuple[Model, Loaded], ...] | None:
    """What a rank holds of a model and its draft; None where no law has it, or the weights are stated instead."""
    models = [m for m in (model, draft) if m is not None]
    t = asked.tensor_parallel_size
    if model is None or asked.weights_bytes is not None or t < 1 or any(m.quantization is not None for m in models):
        return None
    found = []
    for m in models:
        dtype = asked.dtype if asked.dtype not in (None, "auto") else m.dtype
        if dtype not in DTYPE_BITS:
            return None
        shards = t * asked.data_parallel_size
        found.append((m, loaded(m, tensor_parallel_size=t, expert_shards=shards, act_bits=DTYPE_BITS[dtype])))
    return tuple(found)


def weights_line(model: Model | None, draft: Model | None, asked: Deployment) -> Line | None:
    """The ledger line of the weights: as stated, or every stored tensor of the graph; None where neither is known."""
    if asked.weights_bytes is not None:
        note = "parameters and buffers of one rank, as stated"
        return exact("weights", asked.weights_bytes, "as stated", note)
    kept = held(model, draft, asked)
    if kept is None or model is None:
        return None
    size = sum(one.bytes for _, one in kept)
    parts: list[tuple[str, int]] = []
    for m, one in kept:
        parts += one.parts if m is model else [(f"draft: {name}", n) for name, n in one.parts]
    return Line(
        name="weights",
        bytes=size,
        low=size,
        high=size + sum(one.rotary_bytes for _, one in kept),
        kind="derived",
        law="every stored tensor, split over the ranks",
        note=f"{model.n_layers} layers" + (f" and {draft.n_layers} of the draft" if draft is not None else ""),
        parts=tuple(parts),
    )


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
