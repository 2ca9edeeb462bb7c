"""The widgets without a browser: what is said changes what is shown."""

import json

import pytest

from capplan.settings.deployment import FIELDS
from capplan.views.controls import CONTROLS, controls, length_steps
from capplan.views.state import PlannerState
from capplan.views.widgets import (
    TRIES,
    _request_figure,
    change_rows,
    examples,
    findings,
    fit_chart,
    memory_bar,
    news,
    planner,
    request_chart,
    sentence,
    take,
    verdict,
)

MARKUP = ("model=<img src=x onerror=alert(1)>", "speed<script>=1", "model=Qwen/Qwen3-8B&kv_cache_dtype=<img src=x>")
NONSENSE = ({}, {"press": 99}, {"press": "0"}, {"say": 4}, {"say": {"nothing": 1}}, {"file": "exe"})


def tell(widget, message):
    """What the browser would send."""
    widget._handle_custom_msg(message, [])


def heard(widget, monkeypatch):
    """What the widget sends to the browser from here on."""
    sent = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, buffers)))
    return sent


def test_a_control_that_moves_changes_verdict_and_bar():
    state = PlannerState()
    bar, said, form = memory_bar(state), verdict(state), controls(state)
    before = bar.value
    tell(form, {"say": {"tensor_parallel_size": "2"}})
    assert state.tensor_parallel_size == 2
    assert "2 × H100" in said.value
    assert bar.value != before
    assert form.fields["tensor_parallel_size"]["now"] == "2"
    assert form.answered == 1


def test_garbage_keeps_the_last_good_answer_and_says_so():
    state = PlannerState()
    bar, said, form = memory_bar(state), verdict(state), controls(state)
    before = bar.value
    tell(form, {"say": {"max_model_len": "banana"}})
    assert bar.value == before
    assert "banana" in said.value
    assert "banana" in form.fields["max_model_len"]["problem"]


def test_a_refusal_keeps_the_picture_and_shows_what_the_engine_refuses():
    state = PlannerState()
    bar, does = memory_bar(state), findings(state)
    before = bar.value
    state.max_model_len = 200_000
    assert bar.value == before
    assert "longer than the 40,960 tokens" in does.value


@pytest.mark.parametrize("query", MARKUP)
def test_what_an_address_says_is_escaped(query):
    page = planner(PlannerState(query))
    for view in [one for one in walk(page) if hasattr(one, "value") and isinstance(one.value, str)]:
        assert "<img" not in view.value
        assert "<script" not in view.value


def walk(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def test_every_control_is_named_as_the_setting_that_it_sets():
    assert set(CONTROLS) <= {"model", *FIELDS}
    for name, control in CONTROLS.items():
        flag = "" if name == "model" else f"--{name.replace('_', '-')}"
        assert controls(PlannerState(), name).fields[name]["flag"] == flag
        assert control.label


def test_a_control_says_the_engines_default_and_the_way_back():
    state = PlannerState()
    form = controls(state, "max_num_seqs", "max_model_len")
    assert form.fields["max_num_seqs"]["placeholder"] == "1,024, the default on this chip"
    assert form.fields["max_num_seqs"]["back"] == ""
    assert form.fields["max_model_len"]["back"] == "default 40,960"
    tell(form, {"say": {"max_num_seqs": "64"}})
    assert form.fields["max_num_seqs"]["back"] == "default 1,024"
    tell(form, {"say": {"max_num_seqs": None}})
    assert state.max_num_seqs is None


def test_a_form_of_some_controls_says_no_others():
    state = PlannerState()
    tell(controls(state, "max_model_len"), {"say": {"chip": "l4", "max_model_len": "8K"}})
    assert (state.chip, state.max_model_len) == ("h100-sxm", 8_192)


def test_only_models_with_experts_offer_expert_parallel():
    state = PlannerState()
    form = controls(state)
    assert form.fields["enable_expert_parallel"]["hidden"]
    state.model = "Qwen/Qwen3-30B-A3B"
    assert not form.fields["enable_expert_parallel"]["hidden"]


def test_illegal_sizes_are_shown_with_the_reason():
    options = {label: why for _, label, why in controls(PlannerState()).fields["tensor_parallel_size"]["options"]}
    assert options["4"] is None
    assert "64 heads, which 6 ranks cannot share" in options["6"]


def test_lengths_end_at_the_models_own():
    assert length_steps(40_960)[-3:] == (24_576, 32_768, 40_960)
    assert length_steps(512) == (512,)


def test_applying_a_change_asks_it():
    state = PlannerState()
    rows = change_rows(state)
    assert rows.rows[0]["code"] == "--kv-cache-dtype fp8"
    tell(rows, {"press": 0})
    assert state.kv_cache_dtype == "fp8"
    assert rows.rows[0]["code"] != "--kv-cache-dtype fp8"


@pytest.mark.parametrize("place", range(len(TRIES)))
def test_each_example_shows_what_it_says(place):
    state = PlannerState()
    tell(examples(state), {"press": place})
    words = TRIES[place][0]
    if "cache" in words:
        assert state.plan.verdict == "does-not-fit"
        assert state.plan.kv_budget_bytes > 0
    elif "weights" in words:
        assert state.plan.verdict == "does-not-fit"
        assert state.plan.weights_bytes > state.plan.requested_bytes
    else:
        # Qwen3-30B-A3B has 4 key-value heads: from 4 ranks on, each holds a whole one.
        eight = state.plan.kv_block_bytes
        state.tensor_parallel_size = 4
        assert state.plan.kv_block_bytes == eight


@pytest.mark.parametrize("message", NONSENSE)
def test_a_message_that_means_nothing_changes_nothing(message):
    state = PlannerState()
    for widget in (controls(state), change_rows(state), examples(state), take(state), fit_chart(state)):
        tell(widget, message)
    assert state.to_query() == PlannerState().to_query()


def test_files_are_made_when_they_are_asked_for(monkeypatch):
    state = PlannerState()
    card = take(state)
    sent = heard(card, monkeypatch)
    assert card.command == "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768"
    tell(card, {"file": "json"})
    tell(card, {"file": "csv"})
    (as_json, _), (as_csv, _) = sent
    assert json.loads(as_json["text"]) == json.loads(json.dumps(state.plan.to_dict()))
    assert as_json["name"] == "capplan-Qwen3-32B.json"
    assert "weights_bytes" in as_csv["text"]


@pytest.mark.parametrize("make", [request_chart, fit_chart])
def test_a_chart_is_drawn_once_the_browser_is_ready(make, monkeypatch):
    state = PlannerState()
    chart = make(state)
    assert chart.figure == ""
    chart.theme = "light"
    light = json.loads(chart.figure)
    assert light["data"]
    chart.theme = "dark"
    assert json.loads(chart.figure) != light
    sent = heard(chart, monkeypatch)
    tell(chart, {"want": "plotly.js"})
    assert len(sent[0][1][0]) > 1_000_000


def test_the_marker_of_a_chart_follows_the_length():
    state = PlannerState()
    chart = fit_chart(state)
    chart.theme = "light"
    before = chart.figure
    state.max_model_len = 16_384
    assert f"{state.plan.max_concurrency:.2f}×" in json.loads(chart.figure)["data"][-1]["text"][0]
    assert chart.figure != before


def test_what_moved_is_said_until_the_next_change():
    state = PlannerState()
    line = news(state)
    state.model = "microsoft/phi-4"
    assert "max_model_len moved" in line.value
    state.max_num_seqs = 64
    assert "moved" not in line.value


def test_the_sentence_is_the_plans():
    state = PlannerState()
    assert state.plan.sentence.partition(": ")[2] in sentence(state).value


@pytest.mark.parametrize(("form", "other"), [("bfloat16", "fp8"), ("fp8", "bfloat16"), (None, "fp8")])
def test_the_page_compares_with_a_format_that_is_another(form, other):
    shown = PlannerState("model=Qwen/Qwen3-32B&tensor_parallel_size=4").plan.at(kv_cache_dtype=form)
    names = [line.get("name", "") for line in json.loads(_request_figure(shown, "light").to_json())["data"]]
    assert any(other in name for name in names), names
