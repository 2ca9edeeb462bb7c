"""What each distinct rank holds after loading: every tensor class, its shape, width and number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from capplan.deployment import Deployment
from capplan.engines import Backend, Engine, ExpertsKernel
from capplan.engines.vllm.case import (
    KV_BITS,
    Case,
    attention_backend,
    discrete,
    experts_kernel,
    scale_layout,
    sequence_parallel,
)
from capplan.engines.vllm.pool import Group, kv_groups
from capplan.laws import kv_cache, weights
from capplan.model import DTYPE_BITS, EACH, EVERY, FIRST, LAST, Extent, Model, Rope, Tensor
from capplan.registry import Chip
from capplan.units import ceil_share, round_up

WEIGHT_LINES = (
    "embedding",
    "head",
    "matrices",
    "experts",
    "norms",
    "scales",
    "rotary caches",
    "absorbed copies",
    "buffers",
)
"""Sub-lines of the weights, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One class of tensors on one rank after loading."""

    name: str
    line: str
    shape: tuple[int, ...]
    bits: int
    count: int
    bytes_each: int
    split: str

    @property
    def bytes(self) -> int:
        """All tensors of the class together."""
        return self.count * self.bytes_each


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """A rank that is like `count` others: its stage, what it holds, and its share of each group."""

    stage: int
    count: int
    first: bool
    last: bool
    layers: range
    n_layers: int
    held: tuple[Held, ...]
    weights_bytes: int
    weight_lines: tuple[tuple[str, int], ...]
    rounding_bytes: int
    counter_heads: int
    groups: tuple[Group, ...]
    block_bytes: int
    experts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """Everything about a deployment that no array can change: formats, kernels, ranks, groups."""

    dtype: str
    act_bits: int
    kv_cache_dtype: str
    kv_bits: int
    backend: Backend
    block_size: int
    kernel: ExpertsKernel | None
    ranks: tuple[Rank, ...]
    groups: tuple[Group, ...]


def frame(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Frame:
    """What a resolved deployment holds on each distinct rank, and its groups.

    Source: vllm, model_executor/models, and v1/core/kv_cache_planning.py.
    """
    return _frame(model, discrete(d), chip, engine)


@lru_cache(maxsize=4096)
def _frame(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Frame:
    c = Case(model=model, asked=d, d=d, chip=chip, engine=engine)
    backend = attention_backend(c)
    if backend is None or d.block_size is None:
        raise ValueError("a frame needs a resolved deployment")
    kv_format = d.kv_cache_dtype or "auto"
    act_bits = DTYPE_BITS[c.dtype]
    kv_bits = act_bits if kv_format == "auto" else KV_BITS[kv_format]
    groups = kv_groups(model, d, kv_bits)
    return Frame(
        dtype=c.dtype,
        act_bits=act_bits,
        kv_cache_dtype=kv_format,
        kv_bits=kv_bits,
        backend=backend,
        block_size=d.block_size,
        kernel=experts_kernel(c),
        ranks=_ranks(c, backend, act_bits, groups),
        groups=groups,
    )


def stage_layers(n_layers: int, n_stages: int, stage: int) -> range:
    """The layers of one pipeline stage; what is left over goes to the stages just before the last.

    Source: vllm, distributed/utils.py, get_pp_indices.

    >>> [len(stage_layers(32, 3, s)) for s in range(3)]
    [11, 11, 10]
    """
    base, rest = divmod(n_layers, n_stages)
    counts = [base] * n_stages
    for i in range(2, rest + 2):
        counts[-i] += 1
    if n_stages == 1:
        counts = [n_layers]
    start = sum(counts[:stage])
    return range(start, start + counts[stage])


def _ranks(c: Case, backend: Backend, act_bits: int, groups: tuple[Group, ...]) -> tuple[Rank, ...]:
    """The distinct ranks: stages that hold different things, and expert shares of different size."""
    d, model = c.d, c.model
    found: list[Rank] = []
    seen: dict[Any, int] = {}
    shares = [(c.d.tensor_parallel_size * c.d.data_parallel_size, 0)]
    if model.experts is not None:
        fullest = int(weights.experts_per_rank(n_experts=model.experts.n_experts, expert_parallel_size=c.ep_size))
        rest = model.experts.n_experts % c.ep_size
        shares = [(rest or shares[0][0], fullest)] + ([(c.ep_size - rest, fullest - 1)] if rest else [])
    for stage in range(d.pipeline_parallel_size):
        layers = stage_layers(model.n_layers, d.pipeline_parallel_size, stage)
        first, last = stage == 0, stage == d.pipeline_parallel_size - 1
        for count, n_experts in shares:
            held = _held(c, act_bits, layers, first, last, n_experts)
            own = tuple(replace(g, layers=tuple(i for i in g.layers if i in layers)) for g in groups)
            key = (held, first, last, tuple(len(g.layers) for g in own))
            if key in seen:
                at = seen[key]
                found[at] = replace(found[at], count=found[at].count + count)
                continue
            seen[key] = len(found)
            by_line = {line: sum(h.bytes for h in held if h.line == line) for line in WEIGHT_LINES}
            found.append(
                Rank(
                    stage=stage,
                    count=count,
                    first=first,
                    last=last,
                    layers=layers,
                    n_layers=len(layers),
                    held=held,
                    weights_bytes=sum(by_line.values()),
                    weight_lines=tuple((k, v) for k, v in by_line.items() if v),
                    rounding_bytes=sum(h.count * (allocated(c.engine, h.bytes_each) - h.bytes_each) for h in held),
                    counter_heads=model.n_heads // d.tensor_parallel_size if backend.counter_buffer else 0,
                    groups=own,
                    block_bytes=max(g.block_bytes for g in own),
                    experts=n_experts,
                )
            )
    return tuple(found)


def allocated(engine: Engine, n: int) -> int:
    """Bytes that the tensor allocator takes for a tensor of n bytes while the weights load.

    Source: pytorch, c10/cuda/CUDACachingAllocator; vllm, the loader's max_split_size.
    """
    k = engine.constants
    large = int(round_up(n, k["allocator_large_step_bytes"].value))
    if n >= k["allocator_large_least_bytes"].value:
        return large
    small = int(round_up(n, k["allocator_small_step_bytes"].value))
    middle = n >= k["allocator_middle_least_bytes"].value and large - small <= k["allocator_rest_most_bytes"].value
    return large if middle else small


def _held(c: Case, act_bits: int, layers: range, first: bool, last: bool, n_experts: int) -> tuple[Held, ...]:
    """Everything that a rank of one stage holds after loading."""
    model, engine, q = c.model, c.engine, c.model.quantization
    found: list[Held] = []
    for tensor in model.tensors:
        count = _count(tensor, model, layers, first, last)
        if not count:
            continue
        rows = [_extent(e, c) for e in tensor.rows]
        columns = _extent(tensor.columns, c) if tensor.columns is not None else 1
        own = n_experts if tensor.n_experts else 1
        quantized = tensor.quantized and q is not None
        bits = q.weight_bits if quantized and q is not None else tensor.bits or act_bits
        shape = (*((own,) if tensor.n_experts else ()), sum(rows), *((columns,) if tensor.columns is not None else ()))
        each = own * int(weights.matrix_bytes(n_rows=sum(rows), n_columns=columns, weight_bits=bits))
        found.append(
            Held(
                name=tensor.name,
                line=tensor.line,
                shape=shape,
                bits=bits,
                count=count,
                bytes_each=each,
                split=tensor.split,
            )
        )
        if quantized and q is not None:
            found.append(_scales(c, tensor, rows, columns, own, count))
    n_attention = sum(1 for a in model.attention for i in a.layers if i in layers)
    scalars = engine.constants["attention_scalars"].value
    found.append(
        Held(
            name="layers.attention.scales",
            line="buffers",
            shape=(),
            bits=32,
            count=scalars * n_attention,
            bytes_each=4,
            split="whole",
        )
    )
    for i, rope in enumerate(model.ropes):
        n = rope_rows(rope)
        # Uncompiled, latent attention's scaled rope runs in FlashInfer's kernel, which reads numbers of 32 bits.
        bits = 32 if c.d.enforce_eager and model.latent and rope.rope_type == "yarn" else act_bits
        size = int(weights.rotary_cache_bytes(n_positions=n, rotary_dim=rope.rotary_dim, cache_bits=bits))
        name = "rotary" if len(model.ropes) == 1 else f"rotary_{i + 1}"
        found.append(
            Held(
                name=name,
                line="rotary caches",
                shape=(n, rope.rotary_dim),
                bits=bits,
                count=1,
                bytes_each=size,
                split="whole",
            )
        )
    if model.latent and q is not None:
        heads = model.n_heads // c.d.tensor_parallel_size
        size = int(
            weights.absorbed_bytes(
                n_heads=heads,
                nope_dim=model.latent_nope_dim,
                value_dim=model.latent_value_dim,
                latent_rank=model.latent_rank,
                act_bits=act_bits,
            )
        )
        shape = (heads, model.latent_rank, model.latent_nope_dim + model.latent_value_dim)
        found.append(
            Held(
                name="layers.attention.absorbed",
                line="absorbed copies",
                shape=shape,
                bits=act_bits,
                count=len(layers),
                bytes_each=size,
                split="ranks",
            )
        )
    return tuple(found)


def _count(tensor: Tensor, model: Model, layers: range, first: bool, last: bool) -> int:
    """How many tensors of a class one stage holds; a tied table is on the first stage and the last."""
    if tensor.place == EACH:
        return sum(1 for i in tensor.layers if i in layers)
    tied = model.tied and tensor.line == "embedding"
    return int(
        tensor.place == EVERY
        or (tensor.place == FIRST and (first or (tied and last)))
        or (tensor.place == LAST and last)
    )


def _extent(extent: Extent, c: Case) -> int:
    """One extent's share on a rank."""
    size, t = extent.size, c.d.tensor_parallel_size
    if extent.split == "whole":
        return size
    if extent.split == "vocab":
        padding = c.engine.constants["vocab_padding"].value
        return int(weights.vocab_rows_per_rank(vocab=size, vocab_padding=padding, tensor_parallel_size=t))
    if extent.split == "kv_heads":
        return extent.unit * int(kv_cache.kv_heads_per_rank(n_kv_heads=size // extent.unit, tensor_parallel_size=t))
    if extent.split == "expert_columns":
        share = int(weights.share_per_rank(size=size, tensor_parallel_size=c.expert_shards))
        kernel = experts_kernel(c)
        return int(round_up(share, kernel.inner_multiple)) if kernel is not None else share
    if extent.split == "shared_expert" and sequence_parallel(c.d):
        return size
    return int(weights.share_per_rank(size=size, tensor_parallel_size=t))


def _scales(c: Case, tensor: Tensor, rows: list[int], columns: int, own: int, count: int) -> Held:
    """The scales of one class of block-quantized matrices, as they lie after loading."""
    q = c.model.quantization
    layout = scale_layout(c.engine, c.chip)
    if q is None or layout is None:
        raise ValueError("scales need a quantized model and a known layout")
    way = layout.experts if tensor.n_experts else layout.linear
    n_rows = sum(rows)
    block_rows, block_columns = q.block_rows, q.block_columns
    if tensor.n_experts:
        # A shard that whole blocks do not fill gets a finer grid, over the inner and the hidden size alike.
        inner = rows[0] if len(rows) > 1 else columns
        block_rows = block_columns = gcd(q.block_rows, inner, c.model.hidden) if inner % q.block_rows else q.block_rows
    if way == "packed-rows":
        each = int(
            weights.packed_row_scale_bytes(
                n_rows=n_rows, n_columns=columns, block_columns=block_columns, scales_per_word=4, row_alignment=4
            )
        )
        shape: tuple[int, ...] = (-(-columns // block_columns // 4), n_rows)
    else:
        each = int(
            weights.block_scale_bytes(
                n_rows=n_rows, n_columns=columns, block_rows=block_rows, block_columns=block_columns, scale_bits=32
            )
        )
        shape = (-(-n_rows // block_rows), -(-columns // block_columns))
    return Held(
        name=f"{tensor.name}.scales",
        line="scales",
        shape=(own, *shape) if tensor.n_experts else shape,
        bits=32,
        count=count,
        bytes_each=own * each,
        split=tensor.split,
    )


def rope_rows(rope: Rope) -> int:
    """Rows of a rotary table: the positions it is made for, scaled as its type says.

    Source: vllm, model_executor/layers/rotary_embedding/__init__.py, get_rope.
    """
    if rope.rope_type == "linear":
        return int(ceil_share(rope.positions, rope.factor))
    if rope.rope_type == "yarn":
        return int(ceil_share(rope.original_positions or rope.positions, rope.factor))
    if rope.rope_type == "longrope":
        return (rope.original_positions or rope.positions) + rope.positions
    return rope.positions
