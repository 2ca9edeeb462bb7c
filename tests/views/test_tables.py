"""Tables carry the plan's own numbers."""

import csv
import io

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import Deployment
from capplan.units import GIB
from capplan.views import tables


def answer(model, **settings):
    return plan(load_model(model), Deployment(**settings))


def read(shown):
    return list(csv.DictReader(io.StringIO(tables.ledger_csv(shown))))


def test_the_csv_has_a_row_a_line_and_a_row_a_part():
    shown = answer("Qwen/Qwen3-32B", tensor_parallel_size=4)
    rows = read(shown)
    assert tuple(rows[0]) == tables.COLUMNS
    by_name = {row["name"]: row for row in rows if not row["part"]}
    for line in (*shown.lines, shown.tightest.pre_snapshot):
        row = by_name[f"{line.name}_bytes"]
        assert [int(row[key]) for key in ("bytes", "low_bytes", "high_bytes")] == [line.bytes, line.low, line.high]
        parts = [
            (row["part"], int(row["bytes"])) for row in rows if row["part"] and row["name"] == f"{line.name}_bytes"
        ]
        assert parts == [(name, int(size)) for name, size in line.parts]
    assert int(by_name["requested_bytes"]["bytes"]) == shown.requested_bytes
    assert int(by_name["kv_budget_bytes"]["bytes"]) == shown.kv_budget_bytes


def test_the_lines_sum_to_what_is_fixed():
    shown = answer("mistralai/Mixtral-8x7B-v0.1", chip="a100-80gb", tensor_parallel_size=4)
    rows = [row for row in read(shown) if not row["part"]]
    fixed = next(i for i, row in enumerate(rows) if row["name"] == "fixed_bytes")
    assert sum(int(row["bytes"]) for row in rows[:fixed]) == int(rows[fixed]["bytes"]) == shown.fixed_bytes


def test_gib_is_bytes_divided():
    for row in read(answer("Qwen/Qwen3-8B")):
        assert float(row["gib"]) == pytest.approx(int(row["bytes"]) / GIB, abs=1e-6)


def test_a_stated_cache_has_no_requested_row():
    shown = answer("Qwen/Qwen3-8B", kv_cache_memory_bytes=GIB)
    assert "requested_bytes" not in {row["name"] for row in read(shown)}


def test_a_refused_plan_has_a_head_and_no_rows():
    shown = answer("Qwen/Qwen3-32B", tensor_parallel_size=5)
    assert tables.ledger_csv(shown) == ",".join(tables.COLUMNS) + "\n"


def test_frames_hold_whole_bytes():
    pytest.importorskip("pandas")
    shown = answer("google/gemma-2-9b-it", chip="l4")
    ledger = tables.ledger_frame(shown)
    assert ledger.loc[ledger.name.eq("weights_bytes") & ledger.part.eq(""), "bytes"].item() == shown.weights_bytes
    assert ledger["bytes"].dtype == "int64"
    groups = tables.groups_frame(shown)
    assert list(groups.block_bytes) == [g.block_bytes for g in shown.kv_groups]
    assert groups.sliding_window.isna().sum() == 1 and groups.sliding_window.dropna().item() == 4096
    assert len(tables.ledger_frame(answer("Qwen/Qwen3-32B", tensor_parallel_size=5))) == 0
