"""The public form of a plan: plain values under the names that JSON has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capplan.engines.base import Finding, Line
from capplan.engines.pool import Group
from capplan.plan.base import Plan
from capplan.plan.rank import RankPlan
from capplan.registry import Datum
from capplan.settings.deployment import read_by
from capplan.units import is_array

if TYPE_CHECKING:
    from capplan.plan.gpu import GpuPlan
    from capplan.plan.neuron import NeuronPlan


def plain(value: Any) -> Any:
    """A value as JSON knows it: numbers of numpy become Python's."""
    return value.item() if hasattr(value, "item") else value


def finding_dict(f: Finding) -> dict[str, Any]:
    """A finding under its public names."""
    return {"field": f.field, "asked": plain(f.asked), "happens": f.happens, "why": f.why, "source": f.source}


def datum_dict(d: Datum) -> dict[str, Any]:
    """A registry number under its public names."""
    names = ("key", "value", "low", "high", "method", "source", "where", "why")
    return {"file": f"registry/{d.file}", **{name: getattr(d, name) for name in names}}


def line_dict(line: Line) -> dict[str, Any]:
    """A ledger line under its public names."""
    return {
        "name": f"{line.name}_bytes",
        "bytes": plain(line.bytes),
        "low": plain(line.low),
        "high": plain(line.high),
        "kind": line.kind,
        "law": line.law,
        "note": line.note,
        "parts": [{"name": name, "bytes": plain(size)} for name, size in line.parts],
        "data": [datum_dict(d) for d in line.data],
    }


def group_dict(g: Group) -> dict[str, Any]:
    """A cache group under its public names."""
    names = ("spec", "block_size", "page_bytes", "block_bytes")
    found: dict[str, Any] = {"layers": list(g.layers), **{name: getattr(g, name) for name in names}}
    if g.window is not None:
        found["sliding_window"] = g.window
    if g.pages is not None:
        found["request_pages"] = g.pages
    if g.members:
        found["members"] = [
            {"layer": m.layer, "name": m.name, "spec": m.spec, "page_bytes": m.page_bytes} for m in g.members
        ]
    return found


def rank_dict(r: RankPlan, rows: Iterable[str]) -> dict[str, Any]:
    """A distinct rank under its public names."""
    return {
        "stage": r.stage,
        "count": r.count,
        "n_layers": r.n_layers,
        "requested_bytes": plain(r.requested_bytes),
        **{f"{name}_bytes": plain(r.ledger.bytes_of(name)) for name in rows},
        "fixed_bytes": plain(r.fixed_bytes),
        "kv_budget_bytes": plain(r.kv_budget_bytes),
        "kv_block_bytes": plain(r.kv_block_bytes),
        "kv_blocks": plain(r.kv_blocks),
    }


def head(p: Plan) -> dict[str, Any]:
    """What every plan has: what was asked, the verdict, what the engine does about the settings.

    Raises ValueError for a plan for many: it has no public form.
    """
    if is_array(p.verdict):
        raise ValueError("a plan for many has no public form; take one configuration")
    return {
        "model": p.model.name if p.model is not None else None,
        "engine": p.engine.name,
        "verdict": p.verdict,
        "sentence": p.sentence,
        "refused": [finding_dict(f) for f in p.refused],
        "assumed": [finding_dict(f) for f in p.assumed],
        "overridden": [finding_dict(f) for f in p.overridden],
        "ignored": {"flags": list(p.ignored_flags), "config": list(p.model.ignored) if p.model is not None else []},
    }


CAPACITY = (
    "kv_block_bytes",
    "kv_blocks",
    "kv_request_blocks",
    "kv_cache_tokens",
    "max_concurrency",
    "estimated_max_model_len",
    "holds_load",
)
"""Figures of every plan's pool."""


def tail(p: Plan) -> dict[str, Any]:
    """What every plan with figures has: its pool, the lines that are held, the numbers that they rest on."""
    return {
        **{name: plain(getattr(p, name)) for name in CAPACITY},
        "lines": [line_dict(line) for line in (*p.lines, *p.beside)],
        "evidence": p.evidence,
        "sources": [datum_dict(d) for d in p.sources],
    }


def gpu_dict(p: GpuPlan) -> dict[str, Any]:
    """A plan on GPUs under its public names."""
    first: dict[str, Any] = {
        **head(p),
        "chip": p.chip.name,
        "resolved": {name: plain(getattr(p.resolved, name)) for name in read_by(p.engine.rules)},
        "device_bytes": p.device_bytes,
        "device_low_bytes": p.chip.device_bytes.low,
        "device_high_bytes": p.chip.device_bytes.high,
    }
    rank, tokens = p.tightest, p.resolved.tokens
    if p.frame is None or tokens is None:
        return first
    return {
        **first,
        "requested_bytes": plain(p.requested_bytes),
        **{f"{name}_bytes": plain(p.ledger.bytes_of(name)) for name in p.rows},
        "fixed_bytes": plain(p.fixed_bytes),
        "kv_budget_bytes": plain(p.kv_budget_bytes),
        "model_load_bytes": plain(p.model_load_bytes),
        "fixed_low_bytes": plain(rank.fixed_low_bytes) if rank else None,
        "fixed_high_bytes": plain(rank.fixed_high_bytes) if rank else None,
        "kv_budget_low_bytes": plain(rank.kv_budget_low_bytes) if rank else None,
        "kv_budget_high_bytes": plain(rank.kv_budget_high_bytes) if rank else None,
        "outside_bytes": plain(p.outside_bytes),
        "kv_groups": [group_dict(g) for g in p.kv_groups],
        "tokens": plain(tokens),
        "sequence_variable_bytes": plain(p.sequence_variable_bytes(tokens)),
        "sequence_fixed_bytes": plain(p.sequence_fixed_bytes(None if p.states_caches else tokens)),
        "sequence_admission_bytes": plain(p.sequence_admission_bytes()),
        "sequence_own_bytes": plain(p.sequence_own_bytes(tokens)),
        "requests_that_fit": None if p.kv_blocks is None else plain(p.requests_that_fit(tokens)),
        "ranks": [rank_dict(r, p.rows) for r in p.ranks],
        **tail(p),
    }


NEURON_FIGURES = (
    "hbm_stack_bytes",
    "logical_cores_per_hbm_stack",
    "share_bytes",
    "total_budget_bytes",
    "weights_bytes",
    "user_budget_bytes",
    "heuristic_cap_bytes",
    "headroom_bytes",
    "kv_budget_bytes",
    "minimum_bytes",
    "binding",
    "maximum_headroom_bytes",
)
"""Figures of a Neuron budget, in the order in which they follow from each other."""

ANSWER = ("name", "field", "value", "typed", "kv_budget_bytes", "says")


def neuron_dict(p: NeuronPlan) -> dict[str, Any]:
    """A plan on Neuron under its public names."""
    parity, weights, tokens = p.parity(), p.weights, p.resolved.tokens
    countable = p.kv_blocks is not None and tokens is not None and tokens >= 1
    return {
        **head(p),
        "chip": p.chip.name if p.chip is not None else None,
        "instance": p.instance.name if p.instance is not None else None,
        "route": p.route,
        "policy": p.policy,
        "resolved": {name: plain(getattr(p.resolved, name)) for name in read_by(p.engine.rules)},
        **{name: plain(getattr(p, name)) for name in NEURON_FIGURES},
        "requests_admitted": plain(p.requests_admitted),
        "requests_held": plain(p.requests_held),
        "weights_low_bytes": plain(weights.low) if weights else None,
        "weights_high_bytes": plain(weights.high) if weights else None,
        "weights": [{"name": name, "bytes": plain(size)} for name, size in weights.parts] if weights else [],
        "kv_heads_per_rank": p.page.kv_heads_per_rank if p.page else None,
        "kv_head_copies": p.page.kv_head_copies if p.page else None,
        "page_bytes": p.page.page_bytes if p.page else None,
        "tokens": plain(tokens),
        "requests_that_fit": plain(p.requests_that_fit(tokens)) if countable and tokens is not None else None,
        "stack": [{"core": x.core, "name": x.name, "bytes": x.bytes} for x in p.stack],
        "answers": [{key: getattr(a, key) for key in ANSWER} for a in p.answers],
        "parity": None
        if parity is None
        else {
            "holds": parity.holds,
            "device_bytes": int(parity.device.kv_budget_bytes),
            "compiled_bytes": int(parity.compiled.kv_budget_bytes),
            "device_blocks": parity.device_blocks,
            "compiled_blocks": parity.compiled_blocks,
            "causes": list(parity.causes),
        },
        "environment": list(p.environment_lines),
        "log": list(p.log_lines),
        **tail(p),
    }


def refusal_dict(sentence: str, setting: str = "") -> dict[str, Any]:
    """The public form of a refusal that comes before there is a plan."""
    finding = {"field": setting, "asked": None, "happens": "refused", "why": sentence, "source": "capplan"}
    return {"verdict": "refused", "sentence": sentence, "refused": [finding]}
