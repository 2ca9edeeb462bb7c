"""A plan of vLLM on Neuron, and the answers to bare numbers, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capplan.engines.vllm_neuron import Diagnosis, NeuronChip, floor_gib
from capplan.plan.neuron import NeuronPlan
from capplan.units import GIB
from capplan.views.terms import SIGNS

NAMES = {
    "hbm_stack_bytes": "stack of memory",
    "logical_cores_per_hbm_stack": "logical cores at it",
    "share_bytes": "share of one rank",
    "total_budget_bytes": "total budget",
    "weights_bytes": "weights",
    "user_budget_bytes": "left by the weights",
    "heuristic_cap_bytes": "allowed by the cap",
    "headroom_bytes": "reserve",
    "kv_budget_bytes": "cache",
    "computed_available_bytes": "cache",
    "minimum_bytes": "minimum",
    "maximum_headroom_bytes": "largest reserve",
}
"""Figures of a budget in words, in the order in which they follow from each other."""


def neuron_text(p: NeuronPlan, *, colour: bool = False) -> str:
    """Verdict, budget step by step, pool, what would work, parity, variables and log lines, findings."""
    sign = SIGNS[p.verdict]
    head = f"{sign.mark} {sign.word.upper()}"
    if colour:
        head = f"\x1b[1;38;5;{sign.ansi}m{head}\x1b[0m"
    out = [f"{head}  {p.sentence}", ""]
    out += _budget(p) + _pool(p) + _answers(p)
    out += _lines("Set while it starts", p.environment_lines)
    out += _lines("Expect in each worker's log", p.log_lines)
    for word, found in (("refuses", p.refused), ("assumes", p.assumed), ("overrides", p.overridden)):
        out.append(f"The engine {word} {len(found)}")
        out += [
            f"  {f.field}: {f.why} [{f.source}]"
            if word == "refuses"
            else f"  {f.field}: {f.happens}, {f.why} [{f.source}]"
            for f in found
        ]
    if p.ignored_flags:
        out.append(f"Flags that move no memory: {', '.join(p.ignored_flags)}")
    return "\n".join(out).rstrip() + "\n"


def figures_text(figures: Mapping[str, Any]) -> list[str]:
    """Figures under their public names, a line each, bytes in GiB too."""
    rows = []
    for key, value in figures.items():
        if value is None:
            continue
        name = NAMES.get(key, key.replace("_", " "))
        if key.endswith("_bytes") or key.startswith("bytes_per"):
            # What may be typed back is never rounded up.
            gib = floor_gib(value) if key == "maximum_headroom_bytes" else f"{value / GIB:.2f}"
            rows.append(f"  {name:<28}{gib:>10}{value:>20,}")
        else:
            rows.append(f"  {name:<28}{'':>10}{value if isinstance(value, str) else f'{value:,}':>20}")
    return rows


def _budget(p: NeuronPlan) -> list[str]:
    if p.budget is None:
        return []
    known = p.weights.kind if p.weights else ""
    figures = {key: getattr(p, key) for key in NAMES if hasattr(p, key)}
    rows = [f"  {'One rank':<28}{'GiB':>10}{'bytes':>20}", *figures_text(figures)]
    if p.weights is not None and p.weights.high != p.weights.bytes:
        rows.append(f"  weights are {known}: {p.weights.low / GIB:.2f} to {p.weights.high / GIB:.2f}")
    return [*rows, f"  route {p.route}, policy {p.policy}, binding {p.binding}", ""]


def _pool(p: NeuronPlan) -> list[str]:
    if p.kv_blocks is None or p.kv_block_bytes is None:
        return []
    rows = [
        f"  {p.kv_blocks:,} blocks of {p.block_size} tokens and {p.kv_block_bytes:,} bytes, one of them the null block"
    ]
    if p.page is not None:
        copies = f", {p.page.kv_head_copies} copies of each" if p.page.kv_head_copies > 1 else ""
        rows.append(
            f"  {p.page.kv_heads_per_rank} key-value heads on a rank{copies}; {p.page.page_bytes:,} bytes a layer"
        )
    if p.kv_request_blocks is not None:
        rows += [
            f"  GPU KV cache size: {p.kv_cache_tokens:,} tokens",
            f"  Maximum concurrency for {p.resolved.max_model_len:,} tokens per request: {p.max_concurrency:.2f}x",
            f"  a request of full length fills {p.kv_request_blocks:,}; {p.requests_admitted:,} are admitted, "
            f"{p.requests_held:,} fit beside the null block",
            f"  longest length that fits: {p.estimated_max_model_len:,} tokens",
        ]
    if p.holds_load is not None:
        word = "holds" if p.holds_load else "does not hold"
        rows.append(f"  {word} the stated load of {p.asked.requests:,} requests of {p.resolved.tokens:,} tokens")
    return [*rows, ""]


def _answers(p: NeuronPlan) -> list[str]:
    said = [answer.says for answer in p.answers]
    parity = p.parity()
    if parity is not None:
        said.append(parity.sentence)
    return _lines("What would work", said)


def _lines(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"  {line}" for line in lines]
    return [title, *found, ""] if found else []


def diagnosis_text(d: Diagnosis) -> str:
    """What an error means, and what to do, in order."""
    knob = f"{d.direction} {d.primary_knob}" if d.primary_knob else "no setting of memory"
    out = [f"{d.failure_class}: {knob} ({d.policy} policy)"]
    out += [f"  {note}" for note in d.notes]
    out += [f"  {i}. {step}" for i, step in enumerate(d.procedure, 1)]
    return "\n".join(out) + "\n"


def neuron_chips_text(chips: tuple[NeuronChip, ...]) -> str:
    """The registry's Neuron chips, a line each: what a stack of memory holds, and whose it is."""
    rows = [
        f"{'Neuron chip':<14}{'GiB':>8}  {'stacks':<8}{'cores':<7}{'LNC':<8}what it is; where a stack's size is from"
    ]
    for c in chips:
        cores = f"{c.hbm_stacks_per_chip.value:<8}{c.physical_cores_per_chip.value:<7}"
        degrees = " or ".join(map(str, c.degrees))
        size = f"{c.catalog_bytes / GIB:>8.2f}  {cores}{degrees:<8}"
        rows.append(f"{c.name:<14}{size}{c.title}; {c.hbm_stack_bytes.origin()}")
    return "\n".join(rows) + "\n"
