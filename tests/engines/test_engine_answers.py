"""Plans against the engine's own answers, to the byte and to the token."""

import json
from pathlib import Path
from typing import Any

import pytest

from capplan.engines.release import load_engine
from capplan.engines.vllm.case import own_capture_limit
from capplan.engines.vllm.estimates import captured_tokens
from capplan.hub import load_model
from capplan.model import Model, from_config
from capplan.plan import Plan, plan
from capplan.registry import Refused, load_chip
from capplan.settings.deployment import from_mapping

DATA = Path(__file__).parent.parent / "data"
REGISTRY = json.loads((DATA / "vllm-0.33.0-registry.json").read_text())
ASKED = json.loads((DATA / "vllm-0.33.0-asked.json").read_text())
BEYOND = json.loads((DATA / "vllm-0.33.0-beyond.json").read_text())

# What capplan has no law for yet, and says so by name: these start in the engine.
NO_LAW = ("capplan has laws for auto", "has type 'mrope'", "lays out the block scales")


def name_of(case: dict[str, Any]) -> str:
    settings = ",".join(f"{key}={value}" for key, value in case["settings"].items())
    return f"{case['model']}|{case['chip']}|{settings}"


def overrides(case: dict[str, Any], file: dict[str, Any] = REGISTRY) -> dict[str, Any]:
    """The hf_overrides of a case: stated in it, or one of the file's by name."""
    stated = case["settings"].get("hf_overrides", {})
    return file["overrides"][stated] if isinstance(stated, str) else stated


def answers(model: Model, case: dict[str, Any]) -> list[tuple[Plan, list[Any]]]:
    """One plan for each amount of cache memory that the engine was told is available."""
    settings = {key: value for key, value in case["settings"].items() if key != "hf_overrides"}
    asked = {"chip": case["chip"], **settings, "hf_overrides": model.overrides or None}
    return [(plan(model, from_mapping({**asked, "kv_cache_memory_bytes": row[0]})), row) for row in case["capacity"]]


def group_rows(p: Plan) -> list[list[Any]]:
    """The plan's groups as the engine's answers have them."""
    assert p.frame is not None
    many = len(p.frame.groups) > 1
    return [
        [g.spec, len(g.caches()), g.block_size, g.page_bytes, g.window, list(g.layers) if many else None]
        for g in p.frame.groups
    ]


def wanted_rows(case: dict[str, Any], p: Plan, file: dict[str, Any]) -> list[list[Any]]:
    """The engine's groups, without what is a remark only."""
    rows = []
    for row in case["groups"]:
        spec, n, block, page, window, layers = row
        if isinstance(layers, int):
            layers = file["layers"][layers]
        if layers is not None:
            layers = list(dict.fromkeys(layers))
        if spec == "FullAttentionSpec":
            # The engine keeps a merged group's window as a remark; its cache is full all the same.
            window = None
        if spec == "MambaSpec" and not p.resolved.enable_prefix_caching:
            # Without prefixes a state's block is the whole length; nothing is measured by it.
            block = p.resolved.block_size
        rows.append([spec, n, block, page, window, layers])
    return rows


def check(model: Model, case: dict[str, Any], file: dict[str, Any] = REGISTRY) -> None:
    found = answers(model, case)
    p = found[0][0]
    assert p.verdict != "refused", p.sentence
    assert p.frame is not None
    assert {r.bytes_of("weights") for r in p.ranks} >= set(case["weights"])
    assert group_rows(p) == wanted_rows(case, p, file)
    assert {r.kv_block_bytes for r in p.ranks} == set(case["block"])
    assert p.kv_request_blocks == case["request_blocks"]
    resolved = case["resolved"]
    for key in ("dtype", "kv_cache_dtype", "block_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        assert getattr(p.resolved, key) == resolved.get(key, getattr(p.resolved, key)), key
    assert p.in_flight_tokens == resolved["max_in_flight_tokens"]
    assert p.frame.backend.name in resolved["attn_backends"]
    if not case["settings"].get("enforce_eager"):
        own, chip = own_capture_limit(model), load_chip(case["chip"])
        captured = captured_tokens(p.resolved, chip, load_engine(p.resolved.engine), own=own)
        assert captured == resolved["max_cudagraph_capture_size"]
    for p, (_, blocks, figure) in found:
        if blocks is None:
            assert p.verdict == "does-not-fit"
            assert figure in (None, p.estimated_max_model_len)
        else:
            assert (p.kv_blocks, p.kv_cache_tokens) == (blocks, figure)


@pytest.mark.parametrize("case", REGISTRY["cases"], ids=name_of)
def test_the_registry_s_models_hold_what_the_engine_says(case):
    check(load_model(case["model"], overrides=overrides(case)), case)


@pytest.mark.parametrize("case", BEYOND["cases"], ids=name_of)
def test_formats_and_models_beyond_the_registry_hold_what_the_engine_says(case):
    given = overrides(case, BEYOND)
    if case["model"] not in BEYOND["configs"]:
        model = load_model(case["model"], overrides=given)
    else:
        config = {**BEYOND["configs"][case["model"]], **given}
        beside = config.pop("hf_quant_config", None)
        model = from_config(config, name=case["model"], origin="tests/data", beside=beside)
    check(model, case, BEYOND)


@pytest.mark.parametrize("case", REGISTRY["cases"], ids=name_of)
def test_loading_takes_what_the_allocator_makes_of_the_tensors(case):
    p = answers(load_model(case["model"], overrides=overrides(case)), case)[0][0]
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
    assert len(REGISTRY["cases"]) == 356
