"""The public form of a plan: plain values under the names that JSON has."""

from __future__ import annotations

from typing import Any

from capplan.engines.base import Finding, Line
from capplan.engines.pool import Group
from capplan.ledger import LINE_NAMES, RankPlan
from capplan.registry import Datum
from capplan.settings.deployment import read_by
from capplan.units import is_array


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


def rank_dict(r: RankPlan) -> dict[str, Any]:
    """A distinct rank under its public names."""
    return {
        "stage": r.stage,
        "count": r.count,
        "n_layers": r.n_layers,
        "requested_bytes": plain(r.requested_bytes),
        **{f"{name}_bytes": plain(r.bytes_of(name)) for name in LINE_NAMES},
        "fixed_bytes": plain(r.fixed_bytes),
        "kv_budget_bytes": plain(r.kv_budget_bytes),
        "kv_block_bytes": plain(r.kv_block_bytes),
        "kv_blocks": plain(r.kv_blocks),
        "pre_snapshot_bytes": plain(r.pre_snapshot.bytes),
    }


def to_dict(p: Any) -> dict[str, Any]:
    if is_array(p.verdict):
        raise ValueError("a plan for many has no public form; take one configuration")
    head: dict[str, Any] = {
        "model": p.model.name,
        "engine": p.engine.name,
        "chip": p.chip.name,
        "verdict": p.verdict,
        "sentence": p.sentence,
        "refused": [finding_dict(f) for f in p.refused],
        "assumed": [finding_dict(f) for f in p.assumed],
        "overridden": [finding_dict(f) for f in p.overridden],
        "ignored": {"flags": list(p.ignored_flags), "config": list(p.model.ignored)},
        "resolved": {name: plain(getattr(p.resolved, name)) for name in read_by(p.engine.rules)},
        "device_bytes": p.device_bytes,
        "device_low_bytes": p.chip.device_bytes.low,
        "device_high_bytes": p.chip.device_bytes.high,
    }
    rank, tokens = p.tightest, p.resolved.tokens
    if p.frame is None or tokens is None:
        return head
    ledger: dict[str, Any] = {
        "requested_bytes": plain(p.requested_bytes),
        **{
            name: plain(getattr(p, name))
            for name in (*(f"{line}_bytes" for line in LINE_NAMES), "fixed_bytes", "kv_budget_bytes")
        },
        "model_load_bytes": plain(p.model_load_bytes),
        "fixed_low_bytes": plain(rank.fixed_low_bytes) if rank else None,
        "fixed_high_bytes": plain(rank.fixed_high_bytes) if rank else None,
        "kv_budget_low_bytes": plain(rank.kv_budget_low_bytes) if rank else None,
        "kv_budget_high_bytes": plain(rank.kv_budget_high_bytes) if rank else None,
        "pre_snapshot_bytes": plain(p.pre_snapshot_bytes),
        "outside_bytes": plain(p.outside_bytes),
    }
    pre = rank.pre_snapshot if rank else p.known_pre_snapshot
    return {
        **head,
        **ledger,
        "kv_groups": [group_dict(g) for g in p.kv_groups],
        "kv_block_bytes": plain(p.kv_block_bytes),
        "kv_blocks": plain(p.kv_blocks),
        "kv_request_blocks": plain(p.kv_request_blocks),
        "kv_cache_tokens": plain(p.kv_cache_tokens),
        "max_concurrency": plain(p.max_concurrency),
        "estimated_max_model_len": plain(p.estimated_max_model_len),
        "tokens": plain(tokens),
        "sequence_variable_bytes": plain(p.sequence_variable_bytes(tokens)),
        "sequence_fixed_bytes": plain(p.sequence_fixed_bytes(None if p.states_caches else tokens)),
        "sequence_admission_bytes": plain(p.sequence_admission_bytes()),
        "sequence_own_bytes": plain(p.sequence_own_bytes(tokens)),
        "requests_that_fit": None if p.kv_blocks is None else plain(p.requests_that_fit(tokens)),
        "holds_load": p.holds_load,
        "lines": [line_dict(line) for line in (*p.lines, *((pre,) if pre is not None else ()))],
        "ranks": [rank_dict(r) for r in p.ranks],
        "evidence": p.evidence,
        "sources": [datum_dict(d) for d in p.sources],
    }


def refusal_dict(sentence: str, setting: str = "") -> dict[str, Any]:
    """The public form of a refusal that comes before there is a plan."""
    finding = {"field": setting, "asked": None, "happens": "refused", "why": sentence, "source": "capplan"}
    return {"verdict": "refused", "sentence": sentence, "refused": [finding]}
