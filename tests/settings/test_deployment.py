"""Settings as JSON states them: of the right kind, in arrays that no product wraps, said or not, read or not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.registry import Refused
from capplan.settings.deployment import SETTINGS, Deployment, checked, from_mapping, read_by, stated, unread

MANY = [name for name, row in SETTINGS.items() if row.many]


def test_overrides_are_kept_as_canonical_json():
    written = '{"a": {"c": [2]}, "b": 1}'
    assert Deployment(hf_overrides=written).overrides == {"a": {"c": [2]}, "b": 1}
    assert from_mapping({"hf_overrides": {"b": 1, "a": {"c": [2]}}}).hf_overrides == written
    assert from_mapping({"hf_overrides": {}}).hf_overrides is None
    assert Deployment().overrides == {}


def test_a_mapping_states_a_deployment():
    values = {"max-model-len": "32K", "tensor_parallel_size": 2, "enforce_eager": "true", "dtype": " float16 "}
    asked = Deployment(max_model_len=32_768, tensor_parallel_size=2, enforce_eager=True, dtype="float16")
    assert from_mapping(values) == asked
    assert from_mapping({"kv_cache_memory": 5}) == Deployment(kv_cache_memory_bytes=5)
    assert from_mapping({}) == from_mapping(dict.fromkeys(SETTINGS)) == Deployment()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_modle_len": 5}, "there is no setting 'max_modle_len'; the closest"),
        ({"tensor_parallel_size": 1.5}, "tensor_parallel_size is 1.5; it must be a whole number"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True; it must be a whole number"),
        ({"enforce_eager": 2}, "enforce_eager is 2; it must be true or false"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization is True; it must be a share"),
        ({"gpu_memory_utilization": [0.9]}, "gpu_memory_utilization is [0.9]; it must be a share"),
        ({"chip": 100}, "chip is 100; it must be a text"),
        ({"usage_context": "batch"}, "usage_context is 'batch'"),
        ({"hf_overrides": "[]"}, "hf_overrides is []; it must be a JSON object"),
    ],
)
def test_a_mapping_that_states_none_is_named(values, says):
    with pytest.raises(Refused) as error:
        from_mapping(values)
    assert says in str(error.value)


WRONG = {
    "count": [1.5, "4", True, [4], {}],
    "flag": [1, "true", [True]],
    "share": ["0.9", True, [0.9]],
    "number": ["0.9", True, [0.9]],
    "text": [5, True, ["x"]],
    "json": [5, True, ["x"]],
}


@pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.name)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(row):
    label = row.variable.label if row.variable else row.name
    for value in WRONG[row.kind]:
        with pytest.raises(Refused) as error:
            checked(replace(Deployment(), **{row.name: value}))
        assert str(error.value).startswith(f"{label} is {value!r}; it must be ")
    if row.default is not None:
        with pytest.raises(Refused, match=f"{row.name}.* is None"):
            checked(replace(Deployment(), **{row.name: None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", np.array([1, 2])),
        ("block_size", np.array([16, 32])),
        ("max_model_len", np.array([1.5, 2.5])),
        ("max_model_len", np.array(["1", "2"])),
        ("max_num_seqs", np.array([[1, 2], [3, 4]])),
        ("gpu_memory_utilization", np.array(["0.9"])),
        ("usage_context", "batch"),
        ("hf_overrides", "{bad"),
    ],
)
def test_what_no_plan_can_take_is_refused(name, value):
    with pytest.raises(Refused, match=f"^{name} is "):
        checked(replace(Deployment(), **{name: value}))


def test_arrays_of_two_lengths_are_refused():
    two, three = np.array([1024, 2048]), np.array([8, 16, 32])
    with pytest.raises(Refused, match="max_num_seqs"):
        checked(Deployment(max_model_len=two, max_num_seqs=three))


@pytest.mark.parametrize("name", MANY)
def test_a_number_may_be_an_array(name):
    value = np.array([1024, 2048]) if SETTINGS[name].kind == "count" else np.array([0.8, 0.9])
    d = Deployment(**{name: value})
    assert checked(d) is d
    assert list(stated(d)) == [name]


@pytest.mark.parametrize("name", MANY)
def test_an_array_may_hold_its_row_s_most_and_no_more(name):
    most = SETTINGS[name].most
    if SETTINGS[name].kind == "count":
        at, beyond, dtype = most, most + 1, np.int64
    else:
        at, beyond, dtype = float(most), float(np.nextafter(most, np.inf)), np.float64
    for sign in (1, -1):
        d = Deployment(**{name: np.array([sign * at, 1], dtype=dtype)})
        assert checked(d) is d
        with pytest.raises(Refused, match=f"^{name} has numbers beyond {most:,}"):
            checked(Deployment(**{name: np.array([1, sign * beyond], dtype=dtype)}))


@given(blocks=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_blocks_that_pass_in_an_array_do_not_wrap_beside_a_block_of_64_mib(blocks):
    try:
        checked(Deployment(num_gpu_blocks_override=np.array(blocks, dtype=np.int64)))
    except Refused:
        assert any(abs(n) >= 2**36 for n in blocks)
    else:
        assert all(abs(n) * (64 << 20) < 2**63 for n in blocks)


def test_one_number_is_exact_at_any_size():
    assert checked(Deployment(num_gpu_blocks_override=2**62, weights_bytes=2**62))


def test_what_is_no_number_is_left_to_the_rules_but_hides_nothing():
    checked(Deployment(reserved_headroom_gib=np.array([np.nan, 4.0])))
    with pytest.raises(Refused, match="reserved_headroom_gib has numbers beyond"):
        checked(Deployment(reserved_headroom_gib=np.array([np.nan, 1e30])))


def test_an_empty_array_is_one_for_no_configuration():
    assert checked(Deployment(max_num_seqs=np.array([], dtype=np.int64)))


def test_a_deployment_says_only_what_was_said():
    assert stated(Deployment()) == {}
    assert stated(Deployment(requests=4, chip="l4")) == {"chip": "l4", "requests": 4}
    assert Deployment(tensor_parallel_size=4, pipeline_parallel_size=3, data_parallel_size=2).n_chips == 24


def test_what_an_engine_does_not_read_is_found_where_it_was_said():
    assert unread(Deployment(engine="vllm-neuron"), "vllm_neuron") == ()
    d = Deployment(enforce_eager=True, async_scheduling=False, usage_context="llm-class", nnodes=2, cpu_mode=True)
    assert unread(d, "vllm_neuron") == ("usage_context", "nnodes", "enforce_eager", "async_scheduling")
    assert unread(d, "vllm") == unread(d, "blis") == ("cpu_mode",)
    assert unread(Deployment(kv_cache_memory_bytes=np.array([1, 2])), "vllm_neuron") == ("kv_cache_memory_bytes",)
    assert set(read_by("vllm")) | set(read_by("vllm_neuron")) == set(SETTINGS)


VALUES = {
    "count": st.integers(1, 2**40),
    "flag": st.booleans(),
    "share": st.floats(0, 1, exclude_min=True),
    "number": st.floats(0, 64),
    "text": st.sampled_from(["fp8", "auto", "bfloat16", "a b", "it's"]),
    "json": st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), min_size=1).map(
        lambda table: json.dumps(table, sort_keys=True)
    ),
}
SAID = st.fixed_dictionaries(
    {},
    optional={name: st.sampled_from(row.words) if row.words else VALUES[row.kind] for name, row in SETTINGS.items()},
)


@settings(deadline=None)
@given(said=SAID)
def test_json_says_a_deployment_again(said):
    d = Deployment(**said)
    assert from_mapping(json.loads(json.dumps(stated(d)))) == d
