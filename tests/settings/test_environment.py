"""Variables of vLLM on Neuron, read row by row as its workers read them."""

import pytest

from capplan.engines import vllm_neuron as neuron
from capplan.engines.release import load_engine
from capplan.registry import Refused
from capplan.settings import environment
from capplan.settings.command_line import parse_flags
from capplan.settings.deployment import Deployment, from_mapping
from capplan.units import GIB

ENGINE = load_engine("vllm-neuron")


HEADROOM, CAP, MINIMUM = (
    "VLLM_NEURON_RESERVED_HEADROOM_GIB",
    "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION",
    "VLLM_NEURON_MIN_KV_BUDGET_GIB",
)


def budget(weights=8 * GIB, env=None, **said):
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **said, **environment.settings(env or {})})
    return neuron.worker_budget(d, ENGINE, weights_bytes=weights)


# What is read from the environment, row by row


@pytest.mark.parametrize("text", ["0.3", " 1 ", "1e-3", "0.0001"])
def test_a_cap_above_zero_and_up_to_one_is_taken(text):
    assert budget(env={CAP: text}).kv_gmu_budget_cap_fraction == float(text)


@pytest.mark.parametrize("text", ["0", "-0.3", "1.0001", "nan", "inf", "-inf", "", " ", "30%", "0,3", "one"])
def test_a_cap_outside_is_refused_by_name_with_its_text(text):
    with pytest.raises(Refused) as error:
        budget(env={CAP: text})
    assert CAP in str(error.value)
    assert error.value.code == "INVALID_ENV"
    if text.strip("-.0123456789") and text.strip():
        assert text in str(error.value)


@pytest.mark.parametrize("text", ["7", "nan", "30%", "", "-1"])
def test_beside_a_reserve_the_cap_is_not_even_read(text):
    b = budget(env={HEADROOM: "4", CAP: text})
    assert (b.policy, b.kv_gmu_budget_cap_fraction) == ("headroom", None)


@pytest.mark.parametrize("text", ["0", "0.0", " 0.0 ", "-0.0", "4", "1.7", "1e1", "1e290"])
def test_any_finite_reserve_from_zero_is_one(text):
    b = budget(env={HEADROOM: text, MINIMUM: "0"})
    assert (b.policy, b.headroom_bytes) == ("headroom", int(float(text) * GIB))


@pytest.mark.parametrize("text", ["-1", "-0.001", "nan", "inf", "", "4GiB", "4 GiB", "four", "4G"])
def test_no_other_reserve_is_read(text):
    with pytest.raises(Refused, match=HEADROOM) as error:
        budget(env={HEADROOM: text})
    assert error.value.code == "INVALID_ENV"
    assert "0 or more" in str(error.value)


def test_unset_and_empty_differ():
    assert budget(env={}).policy == "default"
    with pytest.raises(Refused, match=f"{HEADROOM} .* is ''"):
        budget(env={HEADROOM: ""})


@pytest.mark.parametrize(("text", "least"), [("1.0", GIB), ("0.1", 107_374_182), ("0", 0), ("-1", 0), (" 2 ", 2 * GIB)])
def test_a_minimum_of_zero_or_less_switches_the_check_off(text, least):
    assert budget(env={MINIMUM: text}).minimum_bytes == least


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "one", "1GiB"])
def test_no_other_minimum_is_read(text):
    with pytest.raises(Refused, match=MINIMUM):
        budget(env={MINIMUM: text})
    with pytest.raises(Refused, match=MINIMUM):
        budget(env={MINIMUM: text, HEADROOM: "1"})


@pytest.mark.parametrize(
    ("text", "on"), [("0", False), ("1", True), ("2", True), ("-1", True), (" 0 ", False), ("00", False)]
)
def test_a_switch_is_a_whole_number_read_as_yes_or_no(text, on):
    assert environment.settings({"VLLM_NEURON_CPU_MODE": text}) == {"cpu_mode": on}
    assert environment.settings({"VLLM_NEURON_CPU_COMPILE": text}) == {"cpu_compile": on}


@pytest.mark.parametrize("name", ["VLLM_NEURON_CPU_MODE", "VLLM_NEURON_CPU_COMPILE"])
@pytest.mark.parametrize("text", ["true", "yes", "on", "", "1.0"])
def test_a_word_is_no_switch(name, text):
    with pytest.raises(Refused, match=name) as error:
        environment.settings({name: text})
    assert repr(text) in str(error.value)


def test_a_variable_s_name_that_is_nearly_right_is_pointed_out():
    assert "VLLM_NEURON_RESERVED_HEADROOM_GIB" in environment.unread({"VLLM_NEURON_HEADROOM_GIB": "4", "HOME": "/"})[0]
    assert environment.unread({HEADROOM: "4", "PATH": ""}) == ()


def test_variables_are_pasted_and_printed():
    pasted = parse_flags(f"export {HEADROOM}=4 NEURON_LOGICAL_NC_CONFIG=1 vllm serve some/model -tp 8".split())
    assert pasted.settings == {"reserved_headroom_gib": 4.0, "logical_nc_config": 1, "tensor_parallel_size": 8}
    assert pasted.model == "some/model"
    assert environment.lines(pasted.settings) == (f"export {HEADROOM}=4", "export NEURON_LOGICAL_NC_CONFIG=1")
    d = from_mapping({HEADROOM: "1.5", "engine": "vllm-neuron"})
    assert d.reserved_headroom_gib == 1.5
