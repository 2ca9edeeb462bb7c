"""The kernel's ledger of one rank: five figures that the total has, and what is held before the budget."""

from __future__ import annotations

from dataclasses import replace

from capplan.engines.base import Line, exact, figure
from capplan.engines.blis.case import Case, snapped
from capplan.engines.declared import own_buffers
from capplan.engines.frame import Rank, Setting
from capplan.engines.pool import speculative_tokens
from capplan.laws import activations, runtime
from capplan.registry import Datum
from capplan.units import Count, at_most, choose

FAMILIES = {
    "NONE": (),
    "PIECEWISE": ("mixed",),
    "FULL": ("mixed",),
    "FULL_DECODE_ONLY": ("decode",),
    "FULL_AND_PIECEWISE": ("mixed", "decode"),
}
"""The families of graphs that each mode captures."""


def lines(s: Setting, rank: Rank | None) -> tuple[Line, ...]:
    """The lines of one rank in the order of the ledger, and what is held before the budget.

    Without a rank the weights are unknown, and theirs and their replicas' lines are left out.

    Source: BLIS latency kernel, the Memory page.
    """
    c = Case(model=s.model, d=s.d, chip=s.chip, engine=s.engine)
    before = _before(c)
    if c.engine.does("communicators", "in-total"):
        nothing = exact("pre_snapshot", 0, "always 0", "this version counts it in the total", role="beside")
        communicators = (replace(before, name="communication", role="charged"), nothing)
    else:
        why = "communicators exist before the budget is taken"
        communicators = (exact("communication", 0, "always 0", why), before)
    return (
        *(() if rank is None else (_weights(c, rank),)),
        exact("allocator_rounding", 0, "not charged", "the kernel rounds nothing"),
        *(() if rank is None else (_replicas(c, rank),)),
        exact("engine_state", 0, "not charged", "the kernel charges no state of the runner"),
        _activations(c, s.seqs, s.tokens),
        exact("non_torch", 0, "not charged", "the kernel charges nothing outside the tensor allocator"),
        _graphs(c, s.seqs, s.tokens),
        *communicators,
    )


def _kind(*data: Datum) -> str:
    """The kind of a line that rests on some figures: assumed where one is, else derived from them."""
    return "assumed" if any(datum.kind == "assumed" for datum in data) else "derived"


def _weights(c: Case, rank: Rank) -> Line:
    note = f"{rank.n_layers} layers"
    if c.model.experts is not None:
        whole = c.d.enable_expert_parallel
        note += (
            f", {rank.experts} of {c.model.experts.n_experts + c.redundant} experts {'whole' if whole else 'sliced'}"
        )
    if c.model.tied:
        note += ", one table for words in and out"
    law = "matrices at their served width, the embedding at its own, ideal shares"
    return exact("weights", rank.weights_bytes, law, note, parts=rank.weight_lines)


def _replicas(c: Case, rank: Rank) -> Line:
    if not rank.replica_bytes:
        return exact("eplb", 0, "none asked", "no replicas of experts are asked for")
    return exact(
        "eplb",
        rank.replica_bytes,
        "each rank's mean share of the replicas",
        f"{c.redundant} replicas in each layer, moved out of the weights",
    )


def _activations(c: Case, seqs: Count, tokens: Count) -> Line:
    """The larger of the forward pass and the sampler's, and a model's own buffers beside it."""
    family = "moe" if c.model.experts is not None else "dense"
    halves = snapped(c.engine, f"half_buffers_{family}_tp", c.tp)
    least, k = c.engine.estimates["activations_least_bytes"], c.engine.constants
    forward = activations.buffers_peak_bytes(
        half_buffers=halves.value,
        max_num_batched_tokens=tokens,
        width=c.width,
        act_bits=k["act_bits"].value,
        least_bytes=least.value,
    )
    parts: tuple[tuple[str, Count], ...] = (("forward pass", forward),)
    peak = forward
    if c.engine.does("sampler", "charged"):
        sampler = activations.sampler_peak_bytes(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            vocab=c.model.vocab,
            bytes_per_logit=c.act_bits // 8 + k["logit_copy_bytes"].value,
            hidden=0,
            act_bits=c.act_bits,
        )
        peak = activations.peak_bytes(sampler_bytes=sampler, forward_bytes=forward)
        parts = (*parts, ("sampler pass", sampler))
    buffers = own_buffers(c.model, c.d, c.chip, c.engine, tokens)
    if buffers:
        own: Count = 0
        for _, size in buffers:
            own = own + size
        peak = activations.with_own_buffers_bytes(pass_bytes=peak, own_bytes=own)
        parts = (*parts, *buffers)
    law = "the larger of the two passes" + (", the model's own buffers beside it" if buffers else "")
    note = f"{halves.value / 2:g} buffers of {c.width:,} elements a token"
    data = (halves, least, *((k["logit_copy_bytes"],) if c.engine.does("sampler", "charged") else ()), k["act_bits"])
    return exact("activations", peak, law, note, data, parts=parts, kind=_kind(halves, least))


def capture_ceiling(c: Case, seqs: Count, tokens: Count) -> Count:
    """The largest step that is captured as a graph, in tokens."""
    stated = c.d.max_cudagraph_capture_size
    if stated is not None:
        return at_most(stated, tokens)
    blackwell = c.chip.capability is not None and c.chip.capability[0] == 10
    limit = c.engine.constants["capture_limit_blackwell" if blackwell else "capture_limit"].value
    return runtime.capture_ceiling(
        max_num_seqs=seqs,
        decode_query_tokens=1 + speculative_tokens(c.d),
        largest_capture=limit,
        max_num_batched_tokens=tokens,
    )


def captured_sizes(*, ceiling: int, num_speculative_tokens: int, decodes: bool) -> tuple[int, ...]:
    """The steps that are captured as graphs, in tokens.

    1, 2, 4, every multiple of 8 below 256, every multiple of 16 from there to the ceiling, the ceiling itself;
    where decoding steps are captured, the same numbers of requests with their drafted tokens too.

    Source: vllm, config/vllm.py, VllmConfig._set_cudagraph_sizes.

    >>> captured_sizes(ceiling=20, num_speculative_tokens=2, decodes=True)
    (1, 2, 3, 4, 6, 8, 12, 16, 20)
    """
    grid = [1, 2, 4, *range(8, 256, 8), *range(256, ceiling + 1, 16)]
    sizes = {n for n in grid if n <= ceiling} | {ceiling}
    if decodes:
        each = 1 + num_speculative_tokens
        sizes |= {n * each for n in grid if n * each <= ceiling}
    return tuple(sorted(sizes))


def decode_ceiling(*, ceiling: int, max_num_seqs: int, num_speculative_tokens: int) -> int:
    """The largest captured step of whole decoding requests: the largest size that is a multiple of a request's tokens.

    >>> decode_ceiling(ceiling=512, max_num_seqs=100, num_speculative_tokens=2)
    288
    """
    each = 1 + num_speculative_tokens
    sizes = captured_sizes(ceiling=ceiling, num_speculative_tokens=num_speculative_tokens, decodes=True)
    most = min(ceiling, max_num_seqs * each)
    return max((n for n in sizes if n <= most and n % each == 0), default=0)


def _graphs(c: Case, seqs: Count, tokens: Count) -> Line:
    """A floor and a cost per token for each family where the file states them, else the mode's flat figure."""
    mode = c.d.cudagraph_mode or "FULL_AND_PIECEWISE"
    families = FAMILIES[mode]
    stated = [
        (
            name,
            c.engine.estimates.get(f"graphs_{name}_floor_bytes"),
            c.engine.estimates.get(f"graphs_{name}_token_bytes"),
        )
        for name in families
    ]
    if families and all(floor is not None and each is not None for _, floor, each in stated):
        return _grown_graphs(c, seqs, tokens, stated)
    datum = c.engine.estimates[f"graphs_{mode.lower()}_bytes"]
    note = f"{mode}; a floor and a cost for each captured token are not known"
    return figure("cuda_graphs", datum, note, law="the mode's flat figure")


def _grown_graphs(c: Case, seqs: Count, tokens: Count, stated: list[tuple[str, Datum | None, Datum | None]]) -> Line:
    ceiling = capture_ceiling(c, seqs, tokens)
    total: Count = 0
    parts: list[tuple[str, Count]] = []
    data: list[Datum] = []
    for name, floor, each in stated:
        if floor is None or each is None:
            continue
        captured = ceiling if name == "mixed" else _decoding(c, ceiling, seqs)
        size = runtime.graphs_bytes(floor_bytes=floor.value, token_bytes=each.value, captured_tokens=captured)
        total, parts, data = total + size, [*parts, (name, size)], [*data, floor, each]
    law = "a floor and a cost for each captured token, family by family"
    return exact("cuda_graphs", total, law, f"{c.d.cudagraph_mode}", tuple(data), parts=tuple(parts), kind=_kind(*data))


def _decoding(c: Case, ceiling: Count, seqs: Count) -> Count:
    """The largest captured decoding step, for one configuration or for each of many."""
    drafted = speculative_tokens(c.d)
    if isinstance(ceiling, int) and isinstance(seqs, int):
        return decode_ceiling(ceiling=ceiling, max_num_seqs=seqs, num_speculative_tokens=drafted)
    import numpy as np

    both = np.broadcast_arrays(np.asarray(ceiling), np.asarray(seqs))
    found = [
        decode_ceiling(ceiling=int(most), max_num_seqs=int(n), num_speculative_tokens=drafted)
        for most, n in zip(both[0].ravel(), both[1].ravel(), strict=True)
    ]
    return np.array(found, dtype=np.int64).reshape(both[0].shape)


def _before(c: Case) -> Line:
    """The communicator, where a rank shares anything, and the engine's workspace."""
    workspace = c.engine.estimates["workspace_bytes"]
    width = snapped(c.engine, "communicator_tp", max(c.tp, 2) if c.communicates else 1, "_bytes")
    communicator: Count = choose(c.communicates, width.value, 0)
    size = runtime.before_budget_bytes(communicator_bytes=communicator, workspace_bytes=workspace.value)
    data = (width, workspace) if c.communicates else (workspace,)
    parts = (("communicator", communicator), ("workspace", workspace.value))
    law, note = "communicator and workspace", "communicator and workspace, before the budget is taken"
    return exact("pre_snapshot", size, law, note, data, parts=parts, kind=_kind(*data), role="beside")
