"""Variables of vLLM on Neuron are read as it reads them, and written as a shell takes them."""

import pytest

from capplan.registry import Refused
from capplan.settings import environment
from capplan.settings.command_line import parse_flags
from capplan.settings.deployment import SETTINGS, from_mapping

HEADROOM, CAP = "VLLM_NEURON_RESERVED_HEADROOM_GIB", "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"


def test_every_variable_is_a_setting_of_its_kind():
    kinds = {"gib": "number", "share": "share", "count": "count", "switch": "flag", "word": "text"}
    assert {v.field: kinds[v.kind] for v in environment.VARIABLES} == {
        name: row.kind for name, row in SETTINGS.items() if row.variable is not None
    }


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


@pytest.mark.parametrize("name", ["reserved_headroom_gib", "kv_gmu_budget_cap_fraction", "min_kv_budget_gib"])
@pytest.mark.parametrize("raw", ["much", "", True, [1], "1 GiB"])
def test_a_setting_that_is_a_variable_is_refused_under_both_names(name, raw):
    variable = environment.BY_FIELD[name]
    with pytest.raises(Refused) as error:
        from_mapping({name: raw})
    assert str(error.value) == f"{variable.name} ({name}) is {raw!r}; it must be {variable.accepts}"
    assert error.value.code == "INVALID_ENV"


def test_beside_a_reserve_the_cap_may_be_any_text():
    assert environment.settings({CAP: "x", HEADROOM: "4"}) == {"reserved_headroom_gib": 4.0}
    with pytest.raises(Refused, match=CAP):
        environment.settings({CAP: "x"})
