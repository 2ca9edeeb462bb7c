"""The Neuron page without a browser: what is said is what `neuron_plan` answers, and bad text loses nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capplan import plan
from capplan.hub import load_model
from capplan.plan.public import NEURON_FIGURES as FIGURES
from capplan.settings.deployment import FIELDS, Deployment, from_mapping
from capplan.units import GIB
from capplan.views.neuron_figures import cap_figure, headroom_figure
from capplan.views.neuron_html import (
    beside_html,
    budget_html,
    diagnosis_html,
    log_html,
    parity_html,
    says_html,
    stack_html,
    verdict_html,
)
from capplan.views.neuron_page import (
    CONTROLS,
    GROUPS,
    TRIES,
    answer_rows,
    controls,
    describe,
    figures_csv,
    neuron_page,
    take,
    verdict,
)
from capplan.views.neuron_state import FIRST, NeuronState

# neuron-golden.json as restated in the tests' data: NB35 has the budget, NK05 the blocks of its cache
VECTORS = json.loads((Path(__file__).resolve().parents[1] / "data" / "neuron-vectors.json").read_text())
GPT_OSS = Deployment(
    engine="vllm-neuron",
    chip="trn3",
    tensor_parallel_size=8,
    weights_bytes=16_106_127_360,
    bytes_per_block=294_912,
    max_model_len=131_072,
    reserved_headroom_gib=4.0,
)
DEFAULT = FIRST.replace("&reserved_headroom_gib=4", "")
VIEWS = (verdict_html, stack_html, budget_html, says_html, parity_html, log_html, beside_html)
ELSEWHERE = (
    "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=16&logical_nc_config=1&reserved_headroom_gib=4",
    "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=8&cpu_mode=true&host_available_bytes=214748364800",
    "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=8&cpu_compile=true&platform_target_override=gen3",
    "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=2&max_model_len=4096",
    "model=Qwen/Qwen3-32B&instance=inf2.48xlarge&tensor_parallel_size=8",
)


def tell(widget, message):
    """What the browser would send."""
    widget._handle_custom_msg(message, [])


def figures(p):
    return {name: getattr(p, name) for name in FIGURES}


def vector(kind, name):
    return next(one for one in VECTORS[kind] if one["id"] == name)


def test_the_first_visit_is_the_worked_reserve_of_the_vectors():
    p = NeuronState().plan
    budget, blocks = vector("budget", "NB35"), vector("blocks", "NK05")["gives"]
    assert p.weights_bytes == budget["asked"]["model_weight_bytes"]
    assert p.kv_budget_bytes == budget["gives"]["available_bytes"] == 18_253_611_008
    assert p.maximum_headroom_bytes == budget["steps"]["maximum_headroom_bytes"]
    assert p.kv_block_bytes == blocks["bytes_per_block_all_layers"]
    assert p.kv_blocks == blocks["num_blocks"] == 61_895
    assert (p.requests_admitted, p.requests_held) == (15, 15)
    assert figures(p) == figures(plan(None, GPT_OSS))


@pytest.mark.parametrize(
    "said",
    [
        {"policy": "default"},
        {"reserved_headroom_gib": "10.5"},
        {"reserved_headroom_gib": "0"},
        {"gpu_memory_utilization": "0.8", "policy": "default"},
        {"kv_gmu_budget_cap_fraction": "0.75", "policy": "default"},
        {"min_kv_budget_gib": "18"},
        {"logical_nc_config": "1", "tensor_parallel_size": "16", "weights_bytes": "8G"},
        {"max_model_len": "32K", "block_size": "16", "bytes_per_block": "147456"},
        {"num_gpu_blocks_override": "100"},
        {"runtime_bytes_used": "0", "runtime_bytes_free": "38,650,000,000"},
        {"cpu_compile": True, "platform_target_override": "trn3"},
        {"instance": "trn2.48xlarge"},
        {"chip": "inf2", "policy": "default"},
    ],
)
def test_settings_give_the_answer_of_the_plan(said):
    state = NeuronState()
    state.say(**said)
    assert (state.note, state.problems) == ("", {})
    plain = {name: getattr(state, name) for name in FIELDS if getattr(state, name) is not None}
    want = plan(None, from_mapping(plain))
    assert figures(state.plan) == figures(want)
    assert state.plan.sentence == want.sentence
    again = NeuronState(state.to_query())
    assert figures(again.plan) == figures(want)


def test_a_control_that_moves_changes_every_view():
    state = NeuronState()
    form, said = controls(state), verdict(state)
    before = said.value
    tell(form, {"say": {"reserved_headroom_gib": "6"}})
    assert state.plan.kv_budget_bytes == 18_253_611_008 - 2 * GIB
    assert said.value != before
    assert "15.00 GiB" in said.value
    assert form.fields["reserved_headroom_gib"]["text"] == "6"
    tell(form, {"say": {"policy": "default"}})
    assert (state.policy, form.fields["policy"]["now"]) == ("default", "default")
    tell(form, {"say": {"policy": "headroom"}})
    assert state.reserved_headroom_gib == 6.0


def test_the_switch_to_a_headroom_keeps_the_cache_where_none_was_stated():
    state = NeuronState(DEFAULT)
    before = state.plan.kv_budget_bytes
    state.say(policy="headroom")
    assert state.plan.policy == "headroom"
    assert state.plan.kv_budget_bytes == before == 10_436_770_529


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("reserved_headroom_gib", "4GiB", "a finite number of GiB, 0 or more and without a unit"),
        ("min_kv_budget_gib", "1 GB", "a finite number of GiB without a unit"),
        ("kv_gmu_budget_cap_fraction", "30%", "a fraction above 0 and at most 1"),
        ("gpu_memory_utilization", "lots", "a share in (0, 1]"),
        ("weights_bytes", "15GiB", "a whole number"),
        ("max_model_len", "<b>8</b>", "a whole number"),
        ("chip", "trn9", "there are inf2, trn1, trn2, trn3"),
        ("instance", "p5.48xlarge", "there is no instance 'p5.48xlarge'"),
        ("platform_target_override", "trn9", "there are"),
        ("model", "no/such-model", "there is no model 'no/such-model'"),
        ("policy", "both", "there are default and headroom"),
    ],
)
def test_bad_text_gives_a_sentence_and_keeps_the_last_answer(name, text, accepted):
    state = NeuronState()
    form, said, answer, query = controls(state), verdict(state), state.plan, state.to_query()
    tell(form, {"say": {name: text}})
    assert text in state.note and accepted in state.note
    assert "Traceback" not in state.note
    assert state.plan is answer and state.to_query() == query
    assert form.fields[name]["problem"]
    assert "Not current" in said.value and "<b>8</b>" not in said.value
    tell(form, {"say": {"reserved_headroom_gib": "4"}})
    assert state.note == ""


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("reserved_headroom_gib", "-1", "VLLM_NEURON_RESERVED_HEADROOM_GIB (reserved_headroom_gib) is -1"),
        ("reserved_headroom_gib", "nan", "is nan"),
        ("weights_bytes", "-5", "the weights are -5 bytes"),
        ("runtime_bytes_free", "-1", "-1 free, which cannot be used"),
    ],
)
def test_what_the_engine_refuses_is_an_answer_and_the_figures_stay(name, text, why):
    state = NeuronState()
    before = state.shown
    state.say(**{name: text})
    assert state.plan.verdict == "refused"
    assert why in state.plan.says and why in state.plan.sentence
    assert state.shown is before
    assert "still those of the answer before" in state.news


def test_both_cpu_switches_and_a_host_without_memory_are_refused():
    state = NeuronState()
    state.say(cpu_mode=True, cpu_compile=True)
    assert "exclude each other" in state.plan.says
    state.say(cpu_compile=False, host_available_bytes="0")
    assert "leaves none of them a share" in state.plan.says


@pytest.mark.parametrize("query", [FIRST, DEFAULT, f"{DEFAULT}&reserved_headroom_gib=22", *ELSEWHERE])
def test_curves_are_the_plan_point_by_point(query):
    p = NeuronState(query).plan
    for curve, other in ((p.cap_curve, {"reserved_headroom_gib": None}), (p.headroom_curve, {})):
        step = max(1, len(curve.values) // 40)
        places = {*range(0, len(curve.values), step), len(curve.values) - 1}
        marks = (curve.now, curve.default, curve.turn)
        places |= {list(curve.values).index(mark) for mark in marks if mark is not None}
        for i in sorted(places):
            one = plan(p.model, replace(p.asked, **other, **{curve.field: float(curve.values[i])}))
            assert one.kv_budget_bytes == curve.kv_budget_bytes[i]
            assert one.binding == curve.binding[i]


@pytest.mark.parametrize("query", [FIRST, DEFAULT, *ELSEWHERE])
def test_figures_draw_the_curves_and_the_point_in_force(query):
    p = NeuronState(query).plan
    for draw, curve in ((cap_figure, p.cap_curve), (headroom_figure, p.headroom_curve)):
        figure = draw(p, theme="dark")
        lines = [one for one in figure.data if one.mode == "lines"]
        assert max(int(one.customdata.max()) for one in lines) == int(curve.kv_budget_bytes.max())
        assert figure.layout.meta["description"].endswith(".")
        if curve.now is not None:
            dots = [one for one in figure.data if one.mode != "lines"]
            assert [(list(dot.x), list(dot.y)) for dot in dots] == [([curve.now], [p.kv_budget_bytes / GIB])]


def test_the_curve_turns_where_the_weights_begin_to_bind():
    p = NeuronState(DEFAULT).plan
    turn = p.cap_curve.turn
    assert p.at(kv_gmu_budget_cap_fraction=turn).binding in ("both", "user_budget")
    assert p.at(kv_gmu_budget_cap_fraction=turn - 1e-6).binding == "cap"
    assert p.headroom_curve.turn == 20.0


@pytest.mark.parametrize("query", [FIRST, DEFAULT, f"{DEFAULT}&reserved_headroom_gib=22", *ELSEWHERE, "chip=trn2"])
def test_every_view_shows_every_answer(query):
    state = NeuronState(query)
    for view in VIEWS:
        said = view(state.plan)
        assert "None" not in said and "nan" not in said
    page = neuron_page(state)
    assert page is not None
    assert {name: describe(state, name)["label"] for name in CONTROLS} == {
        name: control.label for name, control in CONTROLS.items()
    }
    assert {name for _, first, more in GROUPS for name in (*first, *more)} == set(CONTROLS)


def test_two_logical_cores_are_drawn_at_lnc_1():
    one, two = stack_html(NeuronState().plan), stack_html(NeuronState(ELSEWHERE[0]).plan)
    assert (one.count('data-piece="cache"'), two.count('data-piece="cache"')) == (1, 2)
    assert "logical core 1: 12.0" in two


def test_a_refused_budget_shows_the_engine_s_text_and_the_knob():
    said = says_html(NeuronState(f"{DEFAULT}&reserved_headroom_gib=22").plan)
    assert "Computed KV cache budget is below minimum threshold" in said
    assert "at most 20.00 (21,474,836,480 bytes)" in said
    assert says_html(NeuronState().plan) == ""


def test_parity_shows_both_counts_and_the_cause():
    same = parity_html(NeuronState().plan)
    assert same.count("61,895 blocks") >= 2
    other = parity_html(NeuronState(TRIES[-1][1]).plan)
    assert "the compile cache will miss" in other and "the runtime reports" in other


def test_an_error_is_explained_for_this_deployment():
    state = NeuronState()
    form = controls(state)
    tell(form, {"say": {"error": "[NCC_EOOM002] Maximum peak HBM usage of 38.44GB exceeds HBM limit of 36.00GB"}})
    said = diagnosis_html(state.diagnosis)
    assert "increase VLLM_NEURON_RESERVED_HEADROOM_GIB" in said
    assert "2.44 GiB" in said
    tell(form, {"say": {"error": ""}})
    assert diagnosis_html(state.diagnosis) == ""


def test_answers_apply_and_files_are_those_of_the_plan():
    state = NeuronState()
    rows, card = answer_rows(state), take(state)
    assert card.command.splitlines()[0] == "export VLLM_NEURON_RESERVED_HEADROOM_GIB=4"
    labels = [row["label"] for row in rows.rows]
    assert "Apply RESERVED_HEADROOM_GIB=20.00" in labels
    tell(rows, {"press": labels.index("Apply RESERVED_HEADROOM_GIB=20.00")})
    assert state.plan.kv_budget_bytes == GIB == state.plan.minimum_bytes
    for nonsense in ({}, {"press": 99}, {"press": "0"}, {"say": 4}, {"say": {"nothing": 1}}, {"file": "exe"}):
        for widget in (rows, card, controls(state)):
            tell(widget, nonsense)
    assert state.plan.kv_budget_bytes == GIB
    assert f"kv_budget_bytes,{GIB}" in figures_csv(state.plan).splitlines()


def test_another_chip_or_model_settles_what_it_leaves_wrong_and_says_so():
    state = NeuronState(ELSEWHERE[0])
    state.say(chip="trn3")
    state.say(logical_nc_config="2")
    state.say(chip="trn1")
    assert state.logical_nc_config is None
    assert "logical_nc_config is left out: trn1 takes 1" in state.news
    state = NeuronState()
    state.say(model="Qwen/Qwen3-32B")
    assert (state.weights_bytes, state.bytes_per_block, state.max_model_len) == (None, None, None)
    assert "weights_bytes is left out" in state.news
    assert state.plan.model is load_model("Qwen/Qwen3-32B")
    state.say(instance="trn2.48xlarge")
    assert state.chip == "trn2"
    assert "chip moved from trn3 to trn2" in state.news
    state.say(chip="trn3")
    assert state.instance is None


def test_an_address_leaves_out_what_is_unknown_and_says_so():
    state = NeuronState(f"{FIRST}&speed=9&engine=vllm-0.33")
    assert "there is no setting 'speed'" in state.news and "engine is 'vllm-0.33'" in state.news
    assert state.plan.kv_budget_bytes == 18_253_611_008
    assert "model=" not in state.to_query()
    gpu = NeuronState("model=Qwen/Qwen3-32B&chip=h100-sxm")
    assert gpu.chip == "trn3" and "there is no Neuron chip 'h100-sxm'" in gpu.news
    assert gpu.model == "Qwen/Qwen3-32B" and NeuronState("model=Qwen/Qwen3-32B").news == ""
    nothing = NeuronState("chip=trn2")
    assert nothing.plan.verdict == "refused" and "no model is named" in nothing.plan.sentence
