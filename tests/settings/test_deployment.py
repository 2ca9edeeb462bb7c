"""Flags as people paste them, settings as JSON states them, and a command line made of them again."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engines.release import load_engine
from capplan.registry import Refused
from capplan.settings.command_line import command, parse_flags
from capplan.settings.deployment import (
    COUNTS,
    FIELDS,
    FLAGS,
    NEURON,
    NO_FLAG,
    NUMERIC,
    SHORT_FLAGS,
    Deployment,
    checked,
    from_mapping,
    stated,
    whole,
)

ENGINE = load_engine("vllm-0.33.0")
SETTINGS = [name for name in FIELDS if name not in NEURON]
SWITCHES = [name for name in FLAGS if name not in NEURON]
NUMBERS = [name for name in NUMERIC if name not in NEURON]


def parse(line):
    return parse_flags(
        shlex.split(line), no_effect=ENGINE.no_effect, switches=ENGINE.switches, not_planned=ENGINE.not_planned
    )


def refusal(line):
    with pytest.raises(Refused) as error:
        parse(line)
    return str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768",
        "Qwen/Qwen3-32B --tensor_parallel_size 4 --max_model_len 32768",
        "Qwen/Qwen3-32B --tensor-parallel-size=4 --max-model-len=32768",
        "Qwen/Qwen3-32B --tensor_parallel_size=4 --max_model_len=32K",
        "Qwen/Qwen3-32B -tp 4 --max-model-len 32_768",
        "Qwen/Qwen3-32B -tp=4 --max-model-len 32,768",
        "vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 32768",
        "serve Qwen/Qwen3-32B -tp 4 --max-model-len 32768",
        "vllm serve -tp 4 --max-model-len 32768 Qwen/Qwen3-32B",
        "vllm serve --model Qwen/Qwen3-32B -tp 4 --max-model-len 32768",
        "--model=Qwen/Qwen3-32B -tp 2 -tp 4 --max-model-len 32768",
    ],
)
def test_a_command_line_is_read_however_it_is_written(line):
    found = parse(line)
    assert found.model == "Qwen/Qwen3-32B"
    assert found.settings == {"tensor_parallel_size": 4, "max_model_len": 32_768}
    assert found.ignored == ()


@pytest.mark.parametrize(("short", "field"), SHORT_FLAGS.items())
def test_a_short_form_is_its_long_one(short, field):
    value = "" if field in FLAGS else "fp8" if field == "quantization" else "2"
    assert parse(f"m {short} {value}").settings == parse(f"m --{field.replace('_', '-')} {value}").settings


@pytest.mark.parametrize("field", SWITCHES)
def test_a_switch_may_stand_alone_be_denied_or_say_its_value(field):
    dashed = field.replace("_", "-")
    for line, value in [
        (f"--{dashed}", True),
        (f"--{field}", True),
        (f"--no-{dashed}", False),
        (f"--no_{field}", False),
        (f"--{dashed}=false", False),
        (f"--{dashed} False", False),
        (f"--{dashed}=true", True),
        (f"--no-{dashed} --{dashed}", True),
    ]:
        assert parse(f"m {line}").settings == {field: value}, line
        assert parse(f"{line} m").model == "m", line


def test_a_count_cannot_be_denied():
    assert "--no-max-model-len" in refusal("m --no-max-model-len")


def test_other_words_for_a_setting_are_taken():
    # vllm 0.33.0: --kv-cache-memory and --device-memory-utilization
    assert parse("m --kv-cache-memory 4G --device-memory-utilization 0.8").settings == {
        "kv_cache_memory_bytes": 4 << 30,
        "gpu_memory_utilization": 0.8,
    }


def test_flags_that_move_no_memory_are_taken_and_listed():
    found = parse("m --port 8000 --api-key x --trust-remote-code --host=0.0.0.0 -tp 2 --served-model-name q")
    assert found.settings == {"tensor_parallel_size": 2}
    assert found.ignored == (
        "--port 8000",
        "--api-key x",
        "--trust-remote-code",
        "--host 0.0.0.0",
        "--served-model-name q",
    )


def test_a_switch_that_moves_no_memory_does_not_swallow_the_model():
    assert parse("vllm serve --trust-remote-code Qwen/Qwen3-32B -tp 2").model == "Qwen/Qwen3-32B"


def test_flags_that_may_move_memory_without_a_law_are_refused_by_name():
    for line in ("m --enable-lora", "m --cpu-offload-gb 4", "m --speculative_config={}", "m --attention-backend X"):
        flag = line.split()[1].partition("=")[0]
        assert refusal(line).startswith(f"{flag} may move memory, and capplan has no law for it yet")


def test_no_flag_is_on_two_lists():
    known = {field.replace("_", "-") for field in SETTINGS}
    lists = (known, set(ENGINE.no_effect), set(ENGINE.not_planned))
    assert sum(map(len, lists)) == len(set.union(*lists))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("m --max-modle-len 5", "there is no flag --max-modle-len; the closest"),
        ("m --tensor-parallel 5", "--tensor-parallel-size"),
        ("m --pot 8000", "--port"),
        ("m -tpp 4", "there is no flag -tpp"),
        ("m n", "'n' is left over: the model is m already"),
        ("m -tp", "-tp stands at the end without a value"),
        ("m --max-model-len", "--max-model-len stands at the end without a value"),
        ("m -tp four", "tensor_parallel_size is 'four'; it must be a whole number such as 4, 32768 or 32K"),
        ("m --gpu-memory-utilization much", "gpu_memory_utilization is 'much'; it must be a share in (0, 1] such as"),
        ("m --enforce-eager=maybe", "'maybe'; it must be true or false"),
        ("m --hf-overrides {bad", "hf_overrides is not JSON"),
        ("m --hf-overrides [1]", "hf_overrides is [1]; it must be a JSON object"),
        ("m --usage-context batch", "usage_context is 'batch'; there are openai-api-server and llm-class"),
    ],
)
def test_a_wrong_word_is_named_with_what_would_do(line, says):
    assert says in refusal(line)


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
    assert whole("max_model_len", raw) == number


@pytest.mark.parametrize(
    "raw", ["", "k", "4x", "1.5", 1.5, "1..5k", "0x10", "nan", "inf", True, None, [4], "4 5", "--"]
)
def test_what_is_no_whole_number_is_refused(raw):
    with pytest.raises(Refused) as error:
        whole("max_model_len", raw)
    assert str(error.value) == f"max_model_len is {raw!r}; it must be a whole number such as 4, 32768 or 32K"


def test_overrides_are_kept_as_canonical_json():
    written = parse("""m --hf-overrides '{"b": 1, "a": {"c": [2]}}'""").settings["hf_overrides"]
    assert written == '{"a": {"c": [2]}, "b": 1}'
    assert Deployment(hf_overrides=written).overrides == {"a": {"c": [2]}, "b": 1}
    assert from_mapping({"hf_overrides": {"b": 1, "a": {"c": [2]}}}).hf_overrides == written
    assert from_mapping({"hf_overrides": {}}).hf_overrides is None
    assert Deployment().overrides == {}


def test_a_mapping_states_a_deployment():
    values = {"max-model-len": "32K", "tensor_parallel_size": 2, "enforce_eager": "true", "dtype": " float16 "}
    asked = Deployment(max_model_len=32_768, tensor_parallel_size=2, enforce_eager=True, dtype="float16")
    assert from_mapping(values) == asked
    assert from_mapping({"kv_cache_memory": 5}) == Deployment(kv_cache_memory_bytes=5)
    assert from_mapping({}) == from_mapping(dict.fromkeys(FIELDS)) == Deployment()


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
    **{name: [1.5, "4", True, [4], {}] for name in COUNTS},
    **{name: [1, "true", [True]] for name in FLAGS},
    "gpu_memory_utilization": ["0.9", True, [0.9]],
    **{name: [5, True, ["x"]] for name in FIELDS if name not in (*COUNTS, *FLAGS, *NUMERIC)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(name):
    for value in WRONG[name]:
        with pytest.raises(Refused) as error:
            checked(replace(Deployment(), **{name: value}))
        assert str(error.value).startswith(f"{name} is {value!r}; it must be ")
    if FIELDS[name].default is not None:
        with pytest.raises(Refused, match=f"{name} is None"):
            checked(replace(Deployment(), **{name: None}))


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


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_be_an_array(name):
    value = np.array([0.8, 0.9]) if name == "gpu_memory_utilization" else np.array([1024, 2048])
    d = Deployment(**{name: value})
    assert checked(d) is d
    assert list(stated(d)) == [name]


def test_a_deployment_says_only_what_was_said():
    assert stated(Deployment()) == {}
    assert stated(Deployment(requests=4, chip="l4")) == {"chip": "l4", "requests": 4}
    assert Deployment(tensor_parallel_size=4, pipeline_parallel_size=3, data_parallel_size=2).n_chips == 24


NAMES = st.sampled_from(["fp8", "auto", "bfloat16", "a b", "it's"])
ANY = {
    **{name: st.integers(1, 2**40) for name in COUNTS},
    **{name: st.booleans() for name in FLAGS},
    "max_model_len": st.just(-1) | st.integers(1, 2**40),
    "gpu_memory_utilization": st.floats(0, 1, exclude_min=True),
    "usage_context": st.sampled_from(["openai-api-server", "llm-class"]),
    "hf_overrides": st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), min_size=1).map(
        lambda table: json.dumps(table, sort_keys=True)
    ),
}
DEPLOYMENTS = st.fixed_dictionaries({}, optional={name: ANY.get(name, NAMES) for name in SETTINGS}).map(
    lambda settings: Deployment(**settings)
)


@settings(deadline=None)
@given(d=DEPLOYMENTS)
def test_a_command_line_says_a_deployment_again(d):
    found = parse(command("Qwen/Qwen3-32B", d))
    assert found.model == "Qwen/Qwen3-32B"
    assert found.ignored == ()
    kept = {name: getattr(d, name) for name in NO_FLAG}
    assert Deployment(**{**kept, **found.settings}) == d


@settings(deadline=None)
@given(d=DEPLOYMENTS)
def test_json_says_a_deployment_again(d):
    assert from_mapping(json.loads(json.dumps(stated(d)))) == d
