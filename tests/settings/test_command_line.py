"""Flags as people paste them, a command line made of settings again, and the lines that `--help` has of them."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engines.release import load_engine
from capplan.registry import Refused
from capplan.settings.command_line import SHORT, command, help_lines, parse_flags
from capplan.settings.deployment import SETTINGS, Deployment
from capplan.settings.table import ON_NEURON

ENGINE = load_engine("vllm-0.33.0")
SWITCHES = [name for name, row in SETTINGS.items() if row.kind == "flag"]


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


@pytest.mark.parametrize(("short", "field"), SHORT.items())
def test_a_short_form_is_its_long_one(short, field):
    value = {"flag": "", "text": "fp8"}.get(SETTINGS[field].kind, "2")
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
    known = {row.dashed.removeprefix("--") for row in SETTINGS.values() if row.read_by != ON_NEURON}
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


def test_overrides_are_kept_as_canonical_json():
    written = parse("""m --hf-overrides '{"b": 1, "a": {"c": [2]}}'""").settings["hf_overrides"]
    assert written == '{"a": {"c": [2]}, "b": 1}'


VALUES = {
    "count": st.integers(1, 2**40),
    "flag": st.booleans(),
    "share": st.floats(0, 1, exclude_min=True),
    "text": st.sampled_from(["fp8", "auto", "bfloat16", "a b", "it's"]),
    "json": st.sampled_from(['{"a": 1}', '{"a": {"c": [2]}, "b": "x y"}']),
}
SAID = st.fixed_dictionaries({}, optional={name: VALUES[row.kind] for name, row in SETTINGS.items() if row.flag})


@settings(deadline=None)
@given(said=SAID)
def test_a_command_line_says_a_deployment_again(said):
    d = Deployment(**said, chip="l4", tokens=4096)
    found = parse(command("Qwen/Qwen3-32B", d))
    assert found.model == "Qwen/Qwen3-32B"
    assert found.ignored == ()
    assert Deployment(**found.settings, chip="l4", tokens=4096) == d


def test_help_has_a_line_for_every_setting_with_its_short_form_and_no_line_is_too_wide():
    lines = help_lines()
    for row in SETTINGS.values():
        (line,) = [line for line in lines if line.split()[:1] in ([row.dashed], [f"{row.dashed},"])]
        assert row.help in line
        assert all(form in line for form in (*row.short, *row.words))
    # two columns go to click's margin
    assert max(map(len, lines)) <= 98


def test_help_names_neuron_s_settings_and_variables_apart():
    text = "\n".join(help_lines())
    own, flags, neuron, variables = text.split("\n\n")
    assert "--chip NAME" in own and "--tensor-parallel-size, -tp N" in flags
    assert "--reserved-headroom-gib GIB" in neuron and "--reserved-headroom-gib" not in own + flags
    assert "VLLM_NEURON_RESERVED_HEADROOM_GIB" in variables
