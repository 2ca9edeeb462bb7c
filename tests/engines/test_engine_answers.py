"""Plans against the engine's own answers, to the byte and to the token."""

import json
from pathlib import Path
from typing import Any

import pytest

from capplan.deployment import from_mapping
from capplan.engines import load_engine, vllm
from capplan.hub import load_model
from capplan.model import Model, from_config
from capplan.plan import Plan, plan
from capplan.registry import Refused, load_chip

DATA = Path(__file__).parent.parent / "data"
REGISTRY = json.loads((DATA / "vllm-0.33.0-registry.json").read_text())
ASKED = json.loads((DATA / "vllm-0.33.0-asked.json").read_text())

# What capplan has no law for yet, and says so by name: these start in the engine.
NO_LAW = ("capplan has laws for auto", "has type 'mrope'", "lays out the block scales")


def name_of(case: dict[str, Any]) -> str:
    settings = ",".join(f"{key}={value}" for key, value in case["settings"].items())
    return f"{case['model']}|{case['chip']}|{settings}"


def answers(model: Model, case: dict[str, Any]) -> list[tuple[Plan, list[Any]]]:
    """One plan for each amount of cache memory that the engine was told is available."""
    settings = {key: value for key, value in case["settings"].items() if key != "hf_overrides"}
    asked = {"chip": case["chip"], **settings}
    return [(plan(model, from_mapping({**asked, "kv_cache_memory_bytes": row[0]})), row) for row in case["capacity"]]


def check(model: Model, case: dict[str, Any]) -> None:
    found = answers(model, case)
    p = found[0][0]
    assert p.verdict != "refused", p.sentence
    assert p.frame is not None
    assert {r.bytes_of("weights") for r in p.ranks} >= set(case["weights"])
    groups = [
        [
            g.spec,
            len(g.layers),
            g.block_size,
            g.page_bytes,
            g.window,
            list(g.layers) if len(p.frame.groups) > 1 else None,
        ]
        for g in p.frame.groups
    ]
    # The engine keeps a merged group's window as a remark; its cache is full all the same.
    wanted = [[*g[:4], g[4] if g[0] == "SlidingWindowSpec" else None, g[5]] for g in case["groups"]]
    assert groups == wanted
    assert {r.kv_block_bytes for r in p.ranks} == set(case["block"])
    assert p.kv_request_blocks == case["request_blocks"]
    resolved = case["resolved"]
    for key in ("dtype", "block_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        assert getattr(p.resolved, key) == resolved[key], key
    assert p.in_flight_tokens == resolved["max_in_flight_tokens"]
    assert [p.frame.backend.name] == resolved["attn_backends"]
    if not case["settings"].get("enforce_eager"):
        captured = vllm.captured_tokens(p.resolved, load_chip(case["chip"]), load_engine(p.resolved.engine))
        assert captured == resolved["max_cudagraph_capture_size"]
    for p, (_, blocks, figure) in found:
        if blocks is None:
            assert p.verdict == "does-not-fit"
            assert figure in (None, p.estimated_max_model_len)
        else:
            assert (p.kv_blocks, p.kv_cache_tokens) == (blocks, figure)


@pytest.mark.parametrize("case", REGISTRY["cases"], ids=name_of)
def test_the_registry_s_models_hold_what_the_engine_says(case):
    check(load_model(case["model"]), case)


@pytest.mark.parametrize("case", REGISTRY["cases"], ids=name_of)
def test_loading_takes_what_the_allocator_makes_of_the_tensors(case):
    p = answers(load_model(case["model"]), case)[0][0]
    if p.frame is not None and not p.frame.backend.counter_buffer:
        assert {r.bytes_of("weights") + r.bytes_of("allocator_rounding") for r in p.ranks} >= set(case["allocated"])


@pytest.mark.parametrize("case", [c for c in ASKED["cases"] if "refuses" not in c], ids=name_of)
def test_other_configs_hold_what_the_engine_says(case):
    try:
        model = from_config(
            {**ASKED["configs"][case["model"]], **case["settings"].get("hf_overrides", {})},
            name=case["model"],
            origin="tests/data",
        )
        first = answers(model, case)[0][0].sentence
    except Refused as refusal:
        first = str(refusal)
    if any(words in first for words in NO_LAW):
        return
    check(model, case)


@pytest.mark.parametrize("case", [c for c in ASKED["cases"] if "refuses" in c], ids=name_of)
def test_what_the_engine_refuses_is_refused_with_a_sentence(case):
    try:
        model = from_config(ASKED["configs"][case["model"]], name=case["model"], origin="tests/data")
        found = plan(model, from_mapping({"chip": case["chip"], **case["settings"]}))
    except Refused as refusal:
        assert str(refusal)
        return
    assert found.verdict == "refused", case["refuses"]
    assert found.refused[0].why


def test_few_answers_are_set_aside_for_want_of_a_law():
    starts = [c for c in ASKED["cases"] if "refuses" not in c]
    assert len(starts) > 900
    assert len(REGISTRY["cases"]) >= 163
