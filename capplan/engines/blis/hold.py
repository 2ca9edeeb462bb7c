"""What a rank holds at ideal shares, and the caches of a request."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from capplan.engines.blis.case import Case
from capplan.engines.declared import pooled, state_pages, state_spec, stated_caches, stored_format
from capplan.engines.frame import Frame, Held, Rank
from capplan.engines.pool import FULL, RECURRENT, Cache, Group, Spec, grouped, own_pages, speculative_tokens
from capplan.engines.release import Engine
from capplan.engines.vllm.caches import state_bytes
from capplan.engines.vllm.case import Case as VllmCase
from capplan.engines.vllm.case import discrete
from capplan.laws import kv_cache, weights
from capplan.model import EACH, Model, Tensor
from capplan.registry import Chip
from capplan.settings.deployment import Deployment

CHARGED = ("embedding", "head", "matrices", "experts")
"""Lines of the weights that the kernel's graph has."""


def frame(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Frame:
    """What a resolved deployment holds on each distinct rank, and its groups.

    Source: BLIS latency kernel, internal/price/memory.go.
    """
    return _frame(model, discrete(d), chip, engine)


@lru_cache(maxsize=4096)
def _frame(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Frame:
    c = Case(model=model, d=d, chip=chip, engine=engine)
    caches = model.caches
    if caches is not None and caches.owned:
        # What a model file states is sized from that alone; its other layers keep the generic laws.
        graph = [cache for cache in _states(c) if cache.layer not in c.stated_layers]
        every = sorted((*_generic_caches(c), *graph, *stated_caches(model, d, chip)), key=lambda cache: cache.layer)
        found = pooled(every, layout=caches.layout, groups_caches=c.engine.does("caches", "grouped"))
        groups, shared, block, half_bits, why = found.groups, found.shared, found.block_bytes, None, found.why
        form = stored_format(caches, d, chip) or "auto"
    else:
        groups, half_bits = _groups(c)
        block = int(kv_cache.sequence_bytes(charged=d.block_size or 1, half_bits=half_bits))
        shared, block, why = False, block or sum(g.block_bytes for g in groups), ""
        form = c.stored_format
    return Frame(
        dtype=d.dtype or model.dtype,
        act_bits=c.act_bits,
        kv_cache_dtype=form,
        kv_bits=0,
        backend=None,
        block_size=d.block_size or 1,
        kernel=None,
        ranks=_ranks(c, groups, block) if model.tensors else (),
        groups=groups,
        shared=shared,
        token_half_bits=half_bits,
        block_bytes=block,
        why_not_shared=why,
    )


# The caches


def _generic_caches(c: Case) -> list[Cache]:
    """The caches of the layers that a model file states nothing of."""
    block, found = c.d.block_size or 1, []
    for a in c.kept:
        each = c.half_bits(a) // len(a.layers)
        spec = Spec(
            spec="every token",
            kind=FULL,
            block_size=block,
            page_bytes=int(kv_cache.sequence_bytes(charged=block, half_bits=each)),
            latent=a.kind == "latent",
            divides=c.divides_context,
        )
        found += [Cache(layer=i, spec=spec) for i in a.layers]
    return found


def _states(c: Case) -> list[Cache]:
    """Recurrent states, as a model file states them or as its graph has them."""
    found = []
    for stated in c.model.caches.states if c.model.caches is not None else ():
        spec = state_spec(stated, c.d, splits=c.engine.does("states", "split"))
        found += [Cache(layer=layer, spec=spec) for layer in stated.layers]
    split = c.d if c.engine.does("states", "split") else replace(c.d, tensor_parallel_size=1)
    graph = VllmCase(model=c.model, asked=split, d=split, chip=c.chip, engine=c.engine)
    mode, drafted = c.d.mamba_cache_mode, speculative_tokens(c.d)
    for state in c.model.recurrent:
        spec = Spec(
            spec=state.kind,
            kind=RECURRENT,
            block_size=c.d.block_size or 1,
            page_bytes=state_bytes(graph, state),
            name="state",
            pages=state_pages(mode, drafted),
            extra_pages=drafted if mode == "all" else 0,
            divides=False,
        )
        found += [Cache(layer=layer, spec=spec) for layer in state.layers if layer not in c.stated_layers]
    return found


def _groups(c: Case) -> tuple[tuple[Group, ...], int]:
    """Every cache at its own pages: those that keep tokens as one group, each kind of state as another."""
    half_bits = sum(c.half_bits(a) for a in c.kept)
    tokens = sorted(_generic_caches(c), key=lambda cache: cache.layer)
    own = _states(c)
    groups = (grouped(tokens)[0],) if tokens else ()
    return (*groups, *own_pages(own)), half_bits


# The weights


def _charged(c: Case, tensor: Tensor) -> bool:
    """Whether the kernel's graph has a class of tensors: matrices, without routers, convolutions, norms and towers."""
    last = tensor.name.rsplit(".", 1)[-1]
    return tensor.columns is not None and tensor.line in CHARGED and last not in c.own.left_out


def _ranks(c: Case, groups: tuple[Group, ...], block: int) -> tuple[Rank, ...]:
    """The fuller rank, and the lighter one where experts are uneven."""
    model, experts = c.model, c.model.experts
    n_ranks = c.tp * c.dp * c.pcp
    shares = [(n_ranks, 0)]
    if experts is not None:
        physical = experts.n_experts + c.redundant
        fuller = int(
            weights.physical_experts_per_rank(
                n_experts=experts.n_experts, n_redundant_experts=c.redundant, expert_parallel_size=c.ep
            )
        )
        rest = physical % c.ep
        shares = [(rest or n_ranks, fuller)] + ([(c.ep - rest, fuller - 1)] if rest else [])
        if not c.d.enable_expert_parallel:
            shares = [(n_ranks, experts.n_experts)]
    found = []
    for count, n_experts in shares:
        held = _held(c, n_experts)
        size, replicas = weights_bytes(c, n_experts)
        by_line: dict[str, int] = {}
        for h in held:
            by_line[h.line] = by_line.get(h.line, 0) + h.bytes
        # The one floor is on the sum of all, so it may leave some bytes more than the classes' own floors.
        cut = size - sum(by_line.values())
        beside = {"uncut shares": cut, "moved to replicas": -replicas}
        lines = (*by_line.items(), *((name, n) for name, n in beside.items() if n))
        found.append(
            Rank(
                stage=0,
                count=count,
                first=True,
                last=True,
                layers=range(model.n_layers),
                n_layers=model.n_layers,
                held=held,
                weights_bytes=size - replicas,
                weight_lines=lines,
                rounding_bytes=0,
                replica_bytes=replicas,
                counter_heads=0,
                step_buffers=(),
                groups=groups,
                block_bytes=block,
                experts=n_experts,
            )
        )
    return tuple(found)


def weights_bytes(c: Case, n_experts: int) -> tuple[int, int]:
    """Bytes of all matrices of a rank, replicas among them, and of the replicas alone."""
    dense = experts = one = replicas = 0
    for tensor in c.model.tensors:
        if not _charged(c, tensor):
            continue
        bits = _elements(tensor) * tensor.count * c.node_bits(tensor)
        if tensor.n_experts:
            experts, one = experts + bits * n_experts, one + bits
        else:
            dense += bits
    if c.model.tied:
        dense += _widest_table(c)
    size = weights.ideal_weights_bytes(
        dense_bits=dense, tensor_parallel_size=c.tp, expert_bits=experts, expert_shards=c.expert_shards
    )
    if c.redundant and c.d.enable_expert_parallel:
        replicas = int(
            weights.replica_bytes(
                n_redundant_experts=c.redundant, expert_bits=one, expert_parallel_size=c.ep, expert_shards=1
            )
        )
    return int(size), replicas


def _widest_table(c: Case) -> int:
    """Bits that a tied table needs beside the embedding's own: one copy, at the wider of the two widths."""
    elements = c.model.vocab * c.model.hidden
    return elements * max(0, c.table_bits("head") - c.table_bits("embedding"))


def _elements(tensor: Tensor) -> int:
    """Elements of one tensor of a class, of one expert where there are several."""
    columns = tensor.columns.size if tensor.columns is not None else 1
    return sum(extent.size for extent in tensor.rows) * columns


def _held(c: Case, n_experts: int) -> tuple[Held, ...]:
    """Every class of matrices on a rank, each cut to whole bytes for itself."""
    found = []
    for tensor in c.model.tensors:
        if not _charged(c, tensor):
            continue
        bits, own = c.node_bits(tensor), n_experts if tensor.n_experts else 1
        shards = c.expert_shards if tensor.n_experts else c.tp
        count = tensor.count if tensor.place == EACH else 1
        each = _elements(tensor) * own * bits // (8 * shards)
        found.append(
            Held(
                name=tensor.name,
                line=tensor.line,
                shape=(own, *tensor.shape[1:]) if tensor.n_experts else tensor.shape,
                bits=bits,
                count=count,
                bytes_each=each,
                split=f"an ideal share of {shards}" if shards > 1 else "whole",
            )
        )
    return tuple(found)
