"""What each distinct rank holds after loading: every tensor class, its shape, width and number."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from capplan.engines.declared import pooled, stated_caches, stored_format
from capplan.engines.frame import WEIGHT_LINES, Frame, Held, Rank, StepBuffer
from capplan.engines.pool import Cache, Group, pool_block_bytes
from capplan.engines.release import Backend, Engine, capability_matches
from capplan.engines.vllm.caches import model_caches, model_groups
from capplan.engines.vllm.case import (
    KV_BITS,
    Case,
    attention_backend,
    discrete,
    experts_kernel,
    family_of,
    sequence_parallel,
)
from capplan.engines.vllm.formats import form_of, layout_of, lying, place_of
from capplan.laws import kv_cache, weights
from capplan.model import DTYPE_BITS, EACH, EVERY, FIRST, LAST, Extent, Model, Rope, Tensor
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import Count, both, ceil_share, choose, either, round_up


def frame(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Frame:
    """What a resolved deployment holds on each distinct rank, and its groups.

    Source: vllm, model_executor/models, and v1/core/kv_cache_planning.py.
    """
    return _frame(model, discrete(d), chip, engine)


@lru_cache(maxsize=4096)
def _frame(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Frame:
    c = Case(model=model, asked=d, d=d, chip=chip, engine=engine)
    if model.caches is not None and model.caches.owned:
        return _stated_frame(c)
    backend = attention_backend(c)
    if backend is None or d.block_size is None:
        raise ValueError("a frame needs a resolved deployment")
    kv_format = d.kv_cache_dtype or "auto"
    act_bits = DTYPE_BITS[c.dtype]
    kv_bits = act_bits if kv_format == "auto" else KV_BITS[kv_format]
    caches = model_caches(c, backend, kv_bits)
    groups = model_groups(c, caches)
    return Frame(
        dtype=c.dtype,
        act_bits=act_bits,
        kv_cache_dtype=kv_format,
        kv_bits=kv_bits,
        backend=backend,
        block_size=d.block_size,
        kernel=experts_kernel(c),
        ranks=_ranks(c, backend, act_bits, groups, caches),
        groups=groups,
    )


def _stated_frame(c: Case) -> Frame:
    """A frame of a model whose file states its caches; layers that it states nothing of keep the engine's own."""
    caches, d = c.model.caches, c.d
    if caches is None:
        raise ValueError("no caches are stated")
    form = stored_format(caches, d, c.chip) or "auto"
    act_bits = DTYPE_BITS[c.dtype]
    kv_bits = KV_BITS.get(form, act_bits)
    backend = attention_backend(c)
    generic = model_caches(c, backend, kv_bits) if backend is not None else ()
    own = [cache for cache in generic if cache.layer not in caches.opted_in]
    every = sorted((*own, *stated_caches(c.model, d, c.chip)), key=lambda cache: cache.layer)
    found = pooled(every, layout=caches.layout, groups_caches=True, hybrid=not d.disable_hybrid_kv_cache_manager)
    ranks: tuple[Rank, ...] = ()
    if c.model.tensors and backend is not None:
        ranks = _ranks(c, backend, act_bits, found.groups, tuple(every))
    return Frame(
        dtype=c.dtype,
        act_bits=act_bits,
        kv_cache_dtype=form,
        kv_bits=kv_bits,
        backend=backend,
        block_size=d.block_size or 1,
        kernel=experts_kernel(c),
        ranks=ranks,
        groups=found.groups,
        shared=found.shared,
        block_bytes=found.block_bytes,
        why_not_shared=found.why,
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


def _ranks(
    c: Case, backend: Backend, act_bits: int, groups: tuple[Group, ...], caches: tuple[Cache, ...]
) -> tuple[Rank, ...]:
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
            held = _held(c, backend, act_bits, layers, first, last, n_experts)
            own = tuple(g.on(layers) for g in groups)
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
                    rounding_bytes=sum(h.count * (int(allocated(c.engine, h.bytes_each)) - h.bytes_each) for h in held),
                    counter_heads=_counter_heads(c, backend, layers),
                    step_buffers=_step_buffers(c, backend, act_bits, layers, first, last),
                    groups=own,
                    block_bytes=pool_block_bytes(own, caches),
                    experts=n_experts,
                    replica_bytes=_replica_bytes(c, held, n_experts),
                )
            )
    return tuple(found)


def _replica_bytes(c: Case, held: tuple[Held, ...], n_experts: int) -> int:
    """Bytes of the replicas of a rank, each as large as its own experts are."""
    if not c.d.enable_eplb or c.model.experts is None or not n_experts:
        return 0
    physical = weights.physical_experts_per_rank(
        n_experts=c.model.experts.n_experts,
        n_redundant_experts=c.d.num_redundant_experts or 0,
        expert_parallel_size=c.ep_size,
    )
    own = sum(h.bytes for h in held if h.name.startswith("layers.experts"))
    return own // n_experts * (int(physical) - n_experts)


def allocated(engine: Engine, n: Count) -> Count:
    """Bytes that the tensor allocator takes for a tensor of n bytes while the weights load.

    Source: pytorch, c10/cuda/CUDACachingAllocator; vllm, the loader's max_split_size.
    """
    k = engine.constants
    k = engine.constants
    large = round_up(n, k["allocator_large_step_bytes"].value)
    small = round_up(n, k["allocator_small_step_bytes"].value)
    whole = both(n >= k["allocator_middle_least_bytes"].value, large - small <= k["allocator_rest_most_bytes"].value)
    taken: Count = choose(either(n >= k["allocator_large_least_bytes"].value, whole), large, small)
    return taken


def _counter_heads(c: Case, backend: Backend, layers: range) -> int:
    """Query heads for which a rank's attention keeps counters, 0 where its kernels keep none."""
    if not backend.counter_buffer:
        return 0
    heads = [a.n_heads for a in c.model.attention if any(i in layers for i in a.layers)]
    return max(heads, default=0) // c.d.tensor_parallel_size


def _step_buffers(
    c: Case, backend: Backend, act_bits: int, layers: range, first: bool, last: bool
) -> tuple[StepBuffer, ...]:
    """Buffers that follow the engine's step, on a rank of one stage."""
    found = []
    for b in c.model.buffers:
        if b.wants and backend.name not in b.wants:
            continue
        if (b.place == FIRST and not first) or (b.place == LAST and not last):
            continue
        n = sum(1 for i in b.layers if i in layers) if b.layers else 1
        # A stage that begins between two of them makes one for its first layers.
        n += b.leads and layers.start not in b.layers
        count = b.count * n
        if count and not (b.name.startswith("vision") and c.d.language_model_only):
            found.append(
                StepBuffer(
                    name=b.name,
                    count=count,
                    bits=b.bits or act_bits,
                    per_token=b.per_token,
                    per_sequence=b.per_sequence,
                    beside=b.beside,
                )
            )
    return tuple(found)


def _held(
    c: Case, backend: Backend, act_bits: int, layers: range, first: bool, last: bool, n_experts: int
) -> tuple[Held, ...]:
    """Everything that a rank of one stage holds after loading."""
    model, engine = c.model, c.engine
    found: list[Held] = []

    def hold(name: str, line: str, shape: tuple[int, ...], bits: int, count: int, split: str = "whole") -> None:
        n = 1
        for extent in shape:
            n *= extent
        each = int(weights.matrix_bytes(n_rows=n, n_columns=1, weight_bits=bits))
        found.append(Held(name=name, line=line, shape=shape, bits=bits, count=count, bytes_each=each, split=split))

    for tensor in model.tensors:
        count = _count(tensor, model, layers, first, last)
        if not count or (tensor.line == "vision" and c.d.language_model_only):
            continue
        form = form_of(tensor, model, c.d.quantization)
        own = n_experts if tensor.n_experts else 1
        if form is None:
            rows = sum(_extent(e, c) for e in tensor.rows)
            columns = (_extent(tensor.columns, c),) if tensor.columns is not None else ()
            shape = (*((own,) if tensor.n_experts else ()), rows, *columns)
            narrow = tensor.bits is None or capability_matches(tensor.narrow_on, c.chip.capability)
            hold(tensor.name, tensor.line, shape, act_bits if narrow else tensor.bits or 0, count, tensor.split)
            continue
        sizes = matrix_sizes(tensor, c, own)
        layout = layout_of(form.name, place_of(tensor), sizes, engine, c.chip)
        if layout is None:
            raise ValueError("a matrix needs a known layout")
        for part in lying(layout, sizes, act_bits, tensor.line):
            name = f"{tensor.name}.{part.part}" if part.part else tensor.name
            hold(name, part.line, part.shape, part.bits, count * part.copies, tensor.split)
    n_attention = sum(1 for a in model.attention for i in a.layers if i in layers)
    scalars = engine.constants["attention_scalars"].value
    if n_attention:
        hold("layers.attention.scales", "buffers", (), 32, scalars * n_attention)
    if backend.sinks == "copied":
        for a in model.attention:
            n = sum(1 for i in a.layers if i in layers) if a.sinks else 0
            if n:
                hold("layers.attention.sinks.copies", "buffers", (a.n_heads // c.tp,), 32, n, "ranks")
    for i, rope in enumerate(model.ropes):
        if rope.layers and not any(layer in layers for layer in rope.layers):
            continue
        n = rope_rows(rope)
        # Uncompiled, latent attention's scaled rope runs in FlashInfer's kernel, which reads numbers of 32 bits.
        uncompiled = c.d.enforce_eager or model.attention_type == "sparse-latent"
        wide = uncompiled and model.latent and rope.rope_type == "yarn"
        name = rope.use or ("rotary" if len(model.ropes) == 1 else f"rotary_{i + 1}")
        hold(name, "rotary caches", (n, rope.rotary_dim), rope.bits or (32 if wide else act_bits), 1)
    absorbing = [t for t in model.tensors if t.name == "layers.attention.latent_up"]
    copied = sum(_count(t, model, layers, first, last) for t in absorbing if form_of(t, model, c.d.quantization))
    if model.latent and copied:
        heads = model.n_heads // c.d.tensor_parallel_size
        shape = (heads, model.latent_rank, model.latent_nope_dim + model.latent_value_dim)
        hold("layers.attention.absorbed", "absorbed copies", shape, act_bits, copied, "ranks")
    return tuple(found)


def matrix_sizes(tensor: Tensor, c: Case, own: int) -> dict[str, int]:
    """What a layout's formulas call the sizes of a matrix on a rank: rows, columns, experts and a scale's block."""
    form = form_of(tensor, c.model, c.d.quantization)
    rows = [_extent(e, c, padded=False) for e in tensor.rows]
    columns = _extent(tensor.columns, c, padded=False) if tensor.columns is not None else 1
    experts = c.model.experts
    inner = columns if tensor.name.startswith("layers.experts.down") else rows[0]
    family = family_of(c.model)
    sizes = {
        "rows": sum(rows),
        "columns": columns,
        "experts": own,
        "matrices": len(rows),
        "block_rows": form.rows if form else 0,
        "group": form.columns if form else 0,
        "bits": form.bits if form else 0,
        "avoids_deep_gemm": int(family is not None and not family.vllm.deep_gemm),
    }
    if tensor.n_experts and experts is not None:
        if tensor.columns is None:
            inner = expert_inner(c)
        sizes |= {"inner": inner, "outer": experts.hidden, "gated": int(experts.gated)}
    return sizes


def expert_inner(c: Case) -> int:
    """An expert's inner size on a rank, before any kernel pads it."""
    experts = c.model.experts
    if experts is None:
        return 0
    share = int(weights.share_per_rank(size=experts.intermediate, tensor_parallel_size=c.expert_shards))
    if experts.least_intermediate and c.expert_shards > 1:
        share = max(share, experts.least_intermediate)
    return share


def _count(tensor: Tensor, model: Model, layers: range, first: bool, last: bool) -> int:
    """How many tensors of a class one stage holds; a tied table is on the first stage and the last."""
    if tensor.place == EACH:
        return tensor.copies * sum(1 for i in tensor.layers if i in layers)
    tied = model.tied and tensor.line == "embedding"
    return tensor.copies * int(
        tensor.place == EVERY
        or (tensor.place == FIRST and (first or (tied and last)))
        or (tensor.place == LAST and last)
    )


def _extent(extent: Extent, c: Case, *, padded: bool = True) -> int:
    """One extent's share on a rank."""
    size, t = extent.size, c.d.tensor_parallel_size
    if extent.split == "whole":
        return size
    if extent.split == "vocab":
        padding = c.engine.constants["vocab_padding"].value
        return int(weights.vocab_rows_per_rank(vocab=size, vocab_padding=padding, tensor_parallel_size=t))
    if extent.split == "kv_heads":
        return extent.unit * int(kv_cache.kv_heads_per_rank(n_kv_heads=size // extent.unit, tensor_parallel_size=t))
    if extent.split == "groups":
        n = size // extent.unit
        return extent.unit * (n // t if n % t == 0 else 1)
    if extent.split == "expert_columns":
        share = expert_inner(c)
        kernel = experts_kernel(c)
        return int(round_up(share, kernel.inner_multiple)) if kernel is not None and padded else share
    if extent.split == "shared_expert" and sequence_parallel(c.d):
        return size
    if extent.split in ("shared_expert", "padded"):
        share = int(weights.share_per_rank(size=size, tensor_parallel_size=t))
        return int(round_up(share, extent.unit))
    return int(weights.share_per_rank(size=size, tensor_parallel_size=t))


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
