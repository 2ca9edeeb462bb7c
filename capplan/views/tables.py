"""A plan as tables: the ledger and the groups of its cache, for pandas and for a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from capplan.engines.base import Line
from capplan.plan import GpuPlan as Plan
from capplan.units import GIB
from capplan.views.terms import LINE_WORDS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("name", "part", "words", "bytes", "low_bytes", "high_bytes", "gib", "kind", "law", "note", "sources")
"""Columns of the ledger; a row with a `part` is already counted in the row of its line."""


def _line_rows(line: Line) -> list[dict[str, Any]]:
    words = LINE_WORDS.get(line.name, line.name)
    whole = _row(
        f"{line.name}_bytes", words, line.bytes, line.low, line.high, kind=line.kind, law=line.law, note=line.note,
        sources="; ".join(dict.fromkeys(datum.origin() for datum in line.data)),
    )  # fmt: skip
    return [
        whole,
        *({**_row(f"{line.name}_bytes", words, size, size, size), "part": part} for part, size in line.parts),
    ]


def _row(
    name: str,
    words: str,
    size: Any,
    low: Any,
    high: Any,
    *,
    kind: str = "",
    law: str = "",
    note: str = "",
    sources: str = "",
) -> dict[str, Any]:
    values = (name, "", words, int(size), int(low), int(high), int(size) / GIB, kind, law, note, sources)
    return dict(zip(COLUMNS, values, strict=True))


def ledger_rows(plan: Plan) -> list[dict[str, Any]]:
    """The ledger of the tightest rank, a row a line and a row a part; empty where the plan is refused."""
    rank = plan.tightest
    if rank is None:
        return []
    rows = [row for line in rank.lines for row in _line_rows(line)]
    rows.append(_row("fixed_bytes", "fixed", rank.fixed_bytes, rank.fixed_low_bytes, rank.fixed_high_bytes))
    if rank.requested_bytes is not None:
        rows.append(
            _row("requested_bytes", "requested", rank.requested_bytes, rank.requested_bytes, rank.requested_bytes)
        )
    rows.append(
        _row("kv_budget_bytes", "cache", rank.kv_budget_bytes, rank.kv_budget_low_bytes, rank.kv_budget_high_bytes)
    )
    return [*rows, *_line_rows(rank.pre_snapshot)]


def ledger_csv(plan: Plan) -> str:
    """The ledger as CSV with a head, GiB to six places."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "gib": f"{row['gib']:.6f}"} for row in ledger_rows(plan))
    return out.getvalue()


def ledger_frame(plan: Plan) -> pd.DataFrame:
    """The ledger as a frame, a row a line and a row a part."""
    import pandas as pd

    return pd.DataFrame(ledger_rows(plan), columns=list(COLUMNS))


def groups_frame(plan: Plan) -> pd.DataFrame:
    """The groups of the tightest rank's cache as a frame, a row a group."""
    import pandas as pd

    rows = [
        {
            "group": i, "n_layers": len(g.layers), "layers": g.layers, "spec": g.spec, "block_size": g.block_size,
            "page_bytes": g.page_bytes, "block_bytes": g.block_bytes, "sliding_window": g.window,
        }
        for i, g in enumerate(plan.kv_groups)
    ]  # fmt: skip
    columns = ["group", "n_layers", "layers", "spec", "block_size", "page_bytes", "block_bytes", "sliding_window"]
    return pd.DataFrame(rows, columns=columns).astype({"sliding_window": "Int64"})
