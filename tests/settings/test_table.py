"""The rows agree with each other and with their annotations; values are read as the engine reads them."""

import re
from dataclasses import fields

import pytest

from capplan.engines.release import load_engine
from capplan.registry import Refused, names
from capplan.settings.deployment import SETTINGS, Deployment
from capplan.settings.table import ACCEPTS, EVERYWHERE, TYPES, whole
from capplan.views import controls, neuron_page
from capplan.views.neuron_state import NeuronState
from capplan.views.state import PlannerState

ANNOTATED = {field.name: set(re.split(r" \| ", str(field.type))) - {"None"} for field in fields(Deployment)}
WRITTEN = {
    "count": {"int", "Count"},
    "flag": {"bool"},
    "share": {"Share"},
    "number": {"Share"},
    "text": {"str"},
    "json": {"str"},
}


@pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.name)
def test_a_row_is_whole_and_agrees_with_its_annotation(row):
    assert row.kind in TYPES and row.kind in ACCEPTS
    assert row.help and "\n" not in row.help and len(row.help) <= 55
    assert not row.help[0].isupper() or row.help.split()[0].isupper()
    (written,) = ANNOTATED[row.name]
    assert written in WRITTEN[row.kind]
    assert row.many == (written in ("Count", "Share"))
    assert row.default is None or isinstance(row.default, TYPES[row.kind])
    assert row.read_by and set(row.read_by) <= set(EVERYWHERE)
    assert row.variable is None or row.variable.field == row.name
    assert not row.words or row.default is None or row.default in row.words


def test_no_two_rows_share_a_word():
    said = [
        word
        for row in SETTINGS.values()
        for word in (row.dashed, *row.short, *(f"--{word.replace('_', '-')}" for word in row.synonyms))
    ]
    assert len(said) == len(set(said))
    switches = {f"--no-{row.dashed[2:]}" for row in SETTINGS.values() if row.kind == "flag"}
    assert not switches & set(said)


def test_every_engine_s_rules_read_some_settings():
    assert {load_engine(name).rules for name in names("engines")} == set(EVERYWHERE)
    assert all(any(rules in row.read_by for row in SETTINGS.values()) for rules in EVERYWHERE)


def test_a_setting_that_vllm_does_not_read_is_no_flag_of_it():
    assert all("vllm" in row.read_by for row in SETTINGS.values() if row.flag)


def test_a_row_names_the_group_of_the_page_where_its_control_stands():
    groups: dict[str, str] = {}
    # The planner's groups last: a setting that has a control on both pages says where it stands on the planner.
    for form in (neuron_page.controls(NeuronState()), controls.controls(PlannerState())):
        groups |= {name: title or "Place" for title, first, more in form.groups for name in (*first, *more)}
    assert {name: row.page for name, row in SETTINGS.items()} == {name: groups.get(name, "") for name in SETTINGS}


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        ("4", 4),
        (4, 4),
        (" 32768 ", 32_768),
        ("32_768", 32_768),
        ("32,768", 32_768),
        ("-1", -1),
        # vllm 0.33.0, utils/argparse_utils.py, human_readable_int: k is 1,000 and K is 1,024
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("1.5k", 1500),
        ("32K", 32_768),
        ("2M", 2 << 20),
        ("2m", 2_000_000),
        ("20G", 20 << 30),
        ("20g", 20_000_000_000),
        ("1T", 1 << 40),
        # 1.001 * 1000 is 1000.9999999999999 in float64, which the engine truncates
        ("1.001k", 1000),
        # vllm 0.33.0, human_readable_int_or_auto
        ("auto", -1),
    ],
)
def test_a_number_is_read_as_the_engine_reads_it(raw, number):
    assert whole("max_model_len", raw, auto=-1) == number


@pytest.mark.parametrize(
    "raw", ["", "k", "4x", "1.5", 1.5, "1..5k", "0x10", "nan", "inf", True, None, [4], "4 5", "--"]
)
def test_what_is_no_whole_number_is_refused(raw):
    with pytest.raises(Refused) as error:
        whole("max_model_len", raw)
    assert str(error.value) == f"max_model_len is {raw!r}; it must be a whole number such as 4, 32768 or 32K"


def test_only_a_setting_that_the_engine_finds_by_itself_may_be_auto():
    assert SETTINGS["max_model_len"].read("auto") == -1
    with pytest.raises(Refused, match="max_num_seqs is 'auto'"):
        SETTINGS["max_num_seqs"].read("auto")
