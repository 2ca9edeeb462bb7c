"""A plan as text that can be laid beside a start-up log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capplan.engines.base import Finding, Line
from capplan.model import Model
from capplan.plan import GpuPlan as Plan
from capplan.plan.rank import RankPlan
from capplan.registry import Chip
from capplan.units import GIB, MIB, Count
from capplan.views.terms import LINE_WORDS, SIGNS, TERM, TERM_OF_LINE

UNFOLDED = ("weights", "engine_state", "activations")
"""Lines whose parts are listed under them."""


def plan_text(plan: Any, *, colour: bool = False) -> str:
    """A plan as text, in the words of its engine: verdict, ledger, the engine's own lines, findings."""
    if plan.rules.plans == "neuron":
        from capplan.views.neuron_text import neuron_text

        return neuron_text(plan, colour=colour)
    return _gpu_text(plan, colour=colour)


def _gpu_text(plan: Plan, *, colour: bool) -> str:
    sign = SIGNS[plan.verdict]
    head = _paint(f"{sign.mark} {sign.word.upper()}", sign.ansi, colour, bold=True)
    out = [f"{head}  {plan.sentence}", ""]
    if plan.tightest is not None:
        out += [*_ledger(plan, plan.tightest, colour), "", *_one_decimal(plan)]
        out += [*_capacity(plan, plan.tightest), "", *_pool(plan), ""]
    elif plan.frame is not None:
        out += [*_caches(plan), ""]
    return "\n".join([*out, *_findings(plan)]).rstrip() + "\n"


def _paint(text: str, ansi: int, colour: bool, *, bold: bool = False) -> str:
    return f"\x1b[{'1;' if bold else ''}38;5;{ansi}m{text}\x1b[0m" if colour else text


def _mark(term: str, colour: bool) -> str:
    return _paint("▌", TERM[term].ansi, colour) if colour else " "


def _gib(n: Count) -> str:
    return f"{int(n) / GIB:.2f}"


def _row(name: str, size: Count, known: str = "", note: str = "", mark: str = " ") -> str:
    return f"{mark} {name:<26}{_gib(size):>9}{int(size):>20,}  {known:<10}{note}".rstrip()


def _band(low: Count, high: Count) -> str:
    return f"{_gib(low)} to {_gib(high)}"


def _ledger(plan: Plan, rank: RankPlan, colour: bool) -> Iterator[str]:
    n = plan.asked.n_chips
    title = "One rank" if n == 1 else f"One rank of {n}, all alike"
    if len(plan.ranks) > 1:
        title = f"Tightest: {rank.count} of {n} ranks"
    yield f"  {title:<26}{'GiB':>9}{'bytes':>20}  how known"
    for line in rank.lines:
        if line.high or not plan.rows[line.name].hides:
            yield from _line_rows(line, colour)
    every = f"{_band(rank.fixed_low_bytes, rank.fixed_high_bytes)} with every band at its end"
    yield _row("fixed", rank.fixed_bytes, "", every)
    if rank.requested_bytes is not None:
        who = plan.rules.sizes_device
        share = f"{plan.resolved.gpu_memory_utilization:g} of the {_gib(plan.device_bytes)} that {who}"
        yield _row("requested", rank.requested_bytes, "derived", share)
    stated = rank.requested_bytes is None
    cache = "as given" if stated else _band(rank.kv_budget_low_bytes, rank.kv_budget_high_bytes)
    yield _row("cache", rank.kv_budget_bytes, "", cache, _mark("cache", colour))
    pre = rank.pre_snapshot
    beside = f"{_band(pre.low, pre.high)}; outside the budget, must fit beside it"
    yield _row(LINE_WORDS[pre.name], pre.bytes, pre.kind, beside)
    if len(plan.ranks) > 1:
        yield ""
        yield from map(_rank_row, plan.ranks)


def _line_rows(line: Line, colour: bool) -> Iterator[str]:
    note = line.note if line.low == line.high else f"{_band(line.low, line.high)}; {line.note}"
    yield _row(LINE_WORDS[line.name], line.bytes, line.kind, note, _mark(TERM_OF_LINE[line.name], colour))
    if line.name in UNFOLDED:
        yield from (_row(f"  {name}", size) for name, size in line.parts)


def _rank_row(rank: RankPlan) -> str:
    held = f"{rank.count} x {_gib(rank.bytes_of('weights'))} GiB weights"
    return f"  stage {rank.stage}: {held}, {int(rank.kv_block_bytes):,} bytes a block, {int(rank.kv_blocks):,} blocks"


def _capacity(plan: Plan, rank: RankPlan) -> Iterator[str]:
    d = plan.resolved
    yield "As the engine prints it"
    yield f"  Model loading took {_gib(plan.model_load_bytes or 0)} GiB"
    yield f"  Available KV cache memory: {_gib(rank.kv_budget_bytes)} GiB"
    yield f"  GPU KV cache size: {plan.kv_cache_tokens:,} tokens"
    yield f"  Maximum concurrency for {d.max_model_len:,} tokens per request: {plan.max_concurrency:.2f}x"
    yield ""
    yield f"  {plan.kv_blocks:,} blocks of {plan.kv_block_bytes:,} bytes"
    yield f"  {plan.kv_request_blocks:,} blocks for one request of {d.max_model_len:,} tokens at admission"
    yield f"  {plan.estimated_max_model_len:,} tokens is the longest length that starts"
    if d.tokens is not None:
        yield f"  {plan.requests_that_fit(d.tokens):,} requests of {d.tokens:,} tokens in steady decode"
    if plan.holds_load is not None:
        word = "holds" if plan.holds_load else "does not hold"
        yield f"  {word} the stated load of {plan.asked.requests:,} requests of {d.tokens:,} tokens"
    yield f"  {_gib(plan.outside_bytes or 0)} GiB of the device beside the engine's claim"


def _pool(plan: Plan) -> Iterator[str]:
    for i, g in enumerate(plan.kv_groups):
        page = f"blocks of {g.block_size} tokens, {g.page_bytes:,} bytes a layer"
        window = f", window {g.window:,}" if g.window is not None else ""
        yield f"  group {i}: {len(g.layers)} layers, {g.spec}, {page}{window}"


def _one_decimal(plan: Plan) -> Iterator[str]:
    """The figures as the kernel's page prints them; only for its engines."""
    rank, tokens = plan.tightest, plan.resolved.tokens
    if rank is None or tokens is None or not plan.rules.prints:
        return
    yield "As the kernel's page prints it"
    rows = [(LINE_WORDS[name], rank.bytes_of(name)) for name in plan.rules.prints]
    for name, size in (*rows, ("total", rank.fixed_bytes), ("before the budget", rank.pre_snapshot.bytes)):
        yield f"  {name:<26}{int(size) / GIB:>9.1f} GiB"
    yield f"  {f'cache of {tokens:,} tokens':<26}{int(plan.sequence_variable_bytes(tokens)) / MIB:>9.0f} MiB"
    yield ""


def _caches(plan: Plan) -> Iterator[str]:
    """What is known where the weights are not: buffers, groups, and what a request holds."""
    tokens = plan.resolved.tokens
    if tokens is None:
        return
    yield f"  {'What does not rest on weights':<26}{'GiB':>6}{'bytes':>20}  how known"
    for line in plan.lines:
        if line.high:
            yield _row(LINE_WORDS[line.name], line.bytes, line.kind, line.note)
            yield from (_row(f"  {name}", size) for name, size in line.parts)
    yield ""
    yield f"One block of the pool: {plan.kv_block_bytes:,} bytes"
    for i, b in enumerate(plan.pool_blocks()):
        pages: dict[tuple[str, int], list[int]] = {}
        for m in b.pages:
            pages.setdefault((m.name, m.page_bytes), []).append(m.layer)
        said = "; ".join(
            f"{name} of layers {', '.join(map(str, layers))} ({size:,} bytes each)"
            for (name, size), layers in pages.items()
        )
        yield f"  group {i}: {said}; {b.wasted_bytes:,} bytes empty"
    yield ""
    yield f"A request of {tokens:,} tokens"
    yield f"  growing caches {int(plan.sequence_variable_bytes(tokens)):,} bytes"
    yield f"  in steady decode beside them {int(plan.sequence_fixed_bytes()):,} bytes"
    yield f"  set aside at admission beside them {int(plan.sequence_admission_bytes()):,} bytes"
    if plan.kv_blocks is not None:
        yield f"  GPU KV cache size: {plan.kv_cache_tokens:,} tokens"
        yield f"  Maximum concurrency at full length: {plan.max_concurrency:.2f}x"


def _findings(plan: Plan) -> Iterator[str]:
    for word, found in (("refuses", plan.refused), ("assumes", plan.assumed), ("overrides", plan.overridden)):
        yield f"The engine {word} {len(found)}"
        yield from (f"  {_finding(f)} [{f.source}]" for f in found)
    if plan.ignored_flags:
        yield f"Flags that move no memory: {', '.join(plan.ignored_flags)}"
    if plan.model.ignored:
        yield f"Keys of config.json that no law reads: {', '.join(plan.model.ignored)}"


def _finding(f: Finding) -> str:
    return f"{f.field}: {f.why}" if f.happens == "refused" else f"{f.field}: {f.happens}, {f.why}"


def models_text(models: tuple[Model, ...]) -> str:
    """The registry's models, a line each."""
    rows = [f"{'model':<42}{'layers':>7}{'heads':>7}{'KV':>5}{'longest':>10}  {'format':<10}origin"]
    for m in models:
        form = m.quantization.method if m.quantization else m.dtype
        shape = f"{m.n_layers:>7}{m.n_heads:>7}{m.n_kv_heads:>5}{m.max_positions:>10,}"
        rows.append(f"{m.name:<42}{shape}  {form:<10}{m.origin}")
    return "\n".join(rows) + "\n"


def chips_text(chips: tuple[Chip, ...]) -> str:
    """The registry's chips, a line each."""
    rows = [f"{'chip':<14}{'GiB':>8}  {'band':<18}{'compute':<9}{'how known':<10}what it is; where from"]
    for c in chips:
        b = c.device_bytes
        band = _band(b.low, b.high) if b.low != b.high else ""
        known = "nominal" if c.nominal else b.method
        capability = ".".join(map(str, c.capability)) if c.capability else "-"
        size = f"{_gib(b.value):>8}  {band:<18}{capability:<9}{known:<10}"
        rows.append(f"{c.name:<14}{size}{c.title}; {b.origin()}")
    return "\n".join(rows) + "\n"
