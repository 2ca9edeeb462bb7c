"""The command line: exit codes, the engine's own wording, JSON for programs, and one sentence for bad input."""

import json
import re

import pytest
from click.testing import CliRunner

from capplan.cli.main import main
from capplan.registry import load, names

LLAMA = "meta-llama/Meta-Llama-3.1-8B"


def capplan(line, *, stdin=None):
    """What a command prints; anything but an orderly end is a fault."""
    result = CliRunner().invoke(main, line if isinstance(line, list) else line.split(), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    return result


def answers(*lines):
    """The answers to questions, one a line."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    result = capplan("plan --jsonl", stdin="\n".join(texts) + "\n")
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "code", "verdict", "mark"),
    [
        ("Qwen/Qwen3-32B -tp 4 --max-model-len 32768", 0, "fits", "✓ FITS"),
        ("meta-llama/Meta-Llama-3.1-70B -tp 2", 1, "does-not-fit", "✕ DOES NOT FIT"),
        ("Qwen/Qwen3-32B -tp 5", 2, "refused", "| REFUSED"),
        # 3.3 GiB are needed, which the far end of the estimates does not leave
        ("Qwen/Qwen3-8B --chip l4 --max-model-len 24000", 3, "close", "~ CLOSE"),
    ],
)
def test_the_exit_code_is_the_verdict(line, code, verdict, mark):
    text, form = capplan(f"plan {line}"), capplan(f"plan --json {line}")
    assert (text.exit_code, form.exit_code) == (code, code)
    assert text.stdout.startswith(mark)
    assert json.loads(form.stdout)["verdict"] == verdict
    assert text.stderr == form.stderr == ""


def test_the_text_can_be_laid_beside_a_start_up_log():
    # vllm 0.33.0, Llama-3.1-8B on H100 with 40,000,000,000 bytes: 19,073 blocks, 305,168 tokens, 2.33x;
    # start-up record vl-177 has its weights as 14.9889 GiB
    text = capplan(f"plan {LLAMA} --kv-cache-memory-bytes 40_000_000_000").stdout
    for line in (
        "Model loading took 14.99 GiB",
        "Available KV cache memory: 37.25 GiB",
        "GPU KV cache size: 305,168 tokens",
        "Maximum concurrency for 131,072 tokens per request: 2.33x",
        "19,073 blocks of 2,097,152 bytes",
    ):
        assert f"\n  {line}" in text, line
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "line",
    [
        "Qwen/Qwen3-32B -tp 2 -pp 2",
        "Qwen/Qwen3-30B-A3B -tp 4 -dp 3 -ep --chip b200",
        "deepseek-ai/DeepSeek-V3 -tp 8 -pp 2 --chip h200 -ep",
        "google/gemma-2-9b-it --chip l4 --tokens 100 --requests 3",
        "google/gemma-3-1b-it --chip t4",
        f"{LLAMA} --chip mi300x --max-model-len -1 --enforce-eager",
        f"{LLAMA} --chip l4 -pp 2 --kv-cache-memory-bytes 1G --max-model-len -1",
    ],
)
def test_every_kind_of_plan_has_a_text_and_a_public_form(line):
    text, form = capplan(f"plan {line}"), capplan(f"plan --json {line}")
    assert text.exit_code == form.exit_code
    assert json.loads(form.stdout)["sentence"] in text.stdout


def test_stages_that_differ_are_listed():
    text = capplan("plan meta-llama/Meta-Llama-3.1-8B -pp 2").stdout
    # vllm 0.33.0, Llama-3.1-8B on H100 pp 2: 16 layers on each stage
    assert "16 layers" in text
    assert [f"stage {stage}:" in text for stage in (0, 1, 2)] == [True, True, False]


def test_a_vllm_line_may_be_pasted_and_what_moves_no_memory_is_listed():
    text = capplan("plan vllm serve Qwen/Qwen3-32B --tensor_parallel_size=4 --port 8000 --trust-remote-code").stdout
    assert text.splitlines()[-2].endswith("Flags that move no memory: --port 8000, --trust-remote-code")


def test_a_load_is_answered_in_words():
    text = capplan(f"plan {LLAMA} --tokens 4096 --requests 10").stdout
    assert "holds the stated load of 10 requests of 4,096 tokens" in text
    text = capplan(f"plan {LLAMA} --tokens 4096 --requests 10_000").stdout
    assert "does not hold the stated load of 10,000 requests of 4,096 tokens" in text


# fmt: off
PUBLIC = [
    "model", "engine", "chip", "verdict", "sentence", "refused", "assumed", "overridden", "resolved",
    "device_bytes", "requested_bytes", "weights_bytes", "allocator_rounding_bytes", "model_load_bytes",
    "eplb_bytes", "engine_state_bytes", "activations_bytes", "non_torch_bytes", "cuda_graphs_bytes",
    "communication_bytes", "fixed_bytes", "kv_budget_bytes", "pre_snapshot_bytes", "kv_groups", "kv_block_bytes",
    "kv_blocks", "kv_request_blocks", "kv_cache_tokens", "max_concurrency", "estimated_max_model_len",
    "sequence_variable_bytes", "sequence_fixed_bytes", "sequence_admission_bytes", "requests_that_fit", "tokens",
    "lines", "ranks",
]
# fmt: on


def test_json_has_the_public_names():
    form = json.loads(capplan(f"plan --json {LLAMA} -tp 2").stdout)
    assert set(PUBLIC) <= form.keys()
    assert {"layers", "spec", "block_size", "page_bytes", "block_bytes"} <= form["kv_groups"][0].keys()
    assert {"name", "bytes", "low", "high", "kind", "law", "data"} <= form["lines"][0].keys()
    assert {"stage", "count", "weights_bytes", "kv_blocks"} <= form["ranks"][0].keys()
    assert {"field", "asked", "happens", "why", "source"} == form["assumed"][0].keys()
    assert sum(line["bytes"] for line in form["lines"] if line["name"] != "pre_snapshot_bytes") == form["fixed_bytes"]
    assert form["requested_bytes"] - form["fixed_bytes"] == form["kv_budget_bytes"]
    stated = json.loads(capplan(f"plan --json {LLAMA} --kv-cache-memory-bytes 8G").stdout)
    assert (stated["requested_bytes"], stated["kv_budget_bytes"]) == (None, 8 << 30)


def test_a_refusal_is_json_too():
    for line in ("Qwen/Qwen3-33B", "Qwen/Qwen3-32B --chip h101", "Qwen/Qwen3-32B --max-modle-len 5", ""):
        result = capplan(f"plan --json {line}")
        form = json.loads(result.stdout)
        assert (result.exit_code, form["verdict"], result.stderr) == (2, "refused", "")
        assert form["refused"][0]["why"] == form["sentence"]


def test_each_line_of_questions_has_an_answer():
    found = answers(
        {"model": LLAMA, "max-model-len": "8K", "chip": "h100"},
        {"model": LLAMA, "tensor_parallel_size": 5},
        "",
        "{oops",
        [LLAMA],
        "5",
        "null",
        {},
        {"model": 5},
        {"model": "Qwen/Qwen3-33B"},
        {"model": LLAMA, "max_modle_len": 5},
        {"model": LLAMA, "max_model_len": "long"},
        {"model": LLAMA, "hf_overrides": {"num_hidden_layers": "many"}},
        {"model": LLAMA, "hf_overrides": "{oops"},
        {"model": LLAMA, "usage_context": "batch"},
        '{"model": "Qwen/Qwen3-32B", "max_model_len": 1e400}',
        {"model": LLAMA, "hf_overrides": {"num_hidden_layers": 4}},
    )
    assert [form["verdict"] for form in found] == ["fits", *["refused"] * 14, "fits"]
    assert found[0]["resolved"]["max_model_len"] == 8192
    assert all(form["sentence"] and form["refused"] for form in found[1:-1])
    assert len(found[-1]["kv_groups"][0]["layers"]) == 4


@pytest.mark.parametrize("line", ["[" * 100_000, '{"tokens": ' + "9" * 5000 + "}"], ids=["deep", "long number"])
def test_a_line_beyond_what_python_reads_is_answered_too(line):
    assert [form["verdict"] for form in answers(line, {"model": LLAMA})] == ["refused", "fits"]


def test_no_questions_have_no_answers():
    assert answers("") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan", "no model is named"),
        ("plan --chip h100", "no model is named"),
        ("plan Qwen/Qwen3-33B", "the closest"),
        ("plan nowhere/at/all", "there is no file 'nowhere/at/all'"),
        (f"plan {LLAMA} --chip h101", "there is no chip 'h101' in the registry; the closest"),
        (
            f"plan {LLAMA} --engine vllm-0.1",
            "there is no engine 'vllm-0.1' in the registry; the closest",
        ),
        (f"plan {LLAMA} --max-modle-len 5", "there is no flag --max-modle-len; the closest"),
        (f"plan {LLAMA} --enable-lora", "--enable-lora may move memory"),
        (f"plan {LLAMA} -tp", "-tp stands at the end without a value"),
        (f"plan {LLAMA} -tp two", "tensor_parallel_size is 'two'; it must be a whole number"),
        (f"plan {LLAMA} --gpu-memory-utilization most", "it must be a share in (0, 1]"),
        (f"plan {LLAMA} more", "'more' is left over"),
        (f"plan {LLAMA} --hf-overrides {{oops", "hf_overrides is not JSON"),
        ("plan --jsonl Qwen/Qwen3-32B", "--jsonl takes its questions from standard input"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_on_stderr(line, words):
    result = capplan(line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("capplan: ") and result.stderr.count("\n") == 1
    assert words in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--gpu-memory-utilization 0", "gpu_memory_utilization is 0; it must be above 0 and at most 1"),
        ("--gpu-memory-utilization 1.5", "gpu_memory_utilization is 1.5; it must be above 0 and at most 1"),
        ("--gpu-memory-utilization nan", "gpu_memory_utilization is nan"),
        ("--max-model-len 131073", "longer than the 131,072 tokens"),
        ("--max-model-len 0", "max_model_len is 0"),
        ("--max-model-len -2", "max_model_len is -2"),
        ("-tp 5", "choose tensor_parallel_size among 1, 2, 4, 8, 16, 32"),
        ("-tp -1", "each must be 1 or more"),
        ("-pp 0", "each must be 1 or more"),
        ("--max-num-seqs -1", "max_num_seqs is -1"),
        ("--max-num-batched-tokens -1", "max_num_batched_tokens"),
        ("--block-size -16", "block_size is -16"),
        ("--kv-cache-memory-bytes -1", "kv_cache_memory_bytes is -1"),
        ("--max-cudagraph-capture-size -1", "max_cudagraph_capture_size is -1"),
        ("--tokens -1", "-1 tokens"),
        ("--requests -1", "-1 requests"),
        ("--num-gpu-blocks-override 0", "num_gpu_blocks_override is 0"),
        ("--dtype int8", "dtype is 'int8'"),
        ("--kv-cache-dtype int4", "kv_cache_dtype is 'int4'"),
        ("--quantization awq", "quantization awq was asked"),
        ("--max-num-seqs 1" + "0" * 400, "max_num_seqs"),
        ("--kv-cache-memory-bytes 1" + "0" * 400, "kv_cache_memory_bytes"),
    ],
)
def test_what_the_engine_would_refuse_is_a_plan_that_says_so(flags, words):
    result = capplan(f"plan {LLAMA} {flags}")
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes in line 1, column 2"),
        ("[]", "holds a list"),
        ('{"architectures": ["MambaForCausalLM"]}', "capplan has no graph for architecture MambaForCausalLM"),
        ('{"architectures": ["LlamaForCausalLM"]}', "hidden_size in config.json is missing"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": -1}', "hidden_size in config.json is -1"),
    ],
)
def test_a_broken_config_is_one_sentence_on_stderr(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    result = capplan(["plan", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr and result.stderr.count("\n") == 1


def test_a_config_of_ones_own_is_planned(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(load("models", LLAMA)["config"]))
    ours, theirs = (json.loads(capplan(["plan", "--json", word]).stdout) for word in (LLAMA, str(tmp_path)))
    assert theirs["weights_bytes"] == ours["weights_bytes"]
    assert theirs["model"] == tmp_path.name


def test_an_unknown_architecture_is_planned_where_the_flag_asks_for_it(tmp_path):
    config = {**load("models", LLAMA)["config"], "architectures": ["InventedForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["plan", "--json", str(tmp_path), "--max-model-len", "4096"]
    refused, planned = capplan(words), capplan([*words, "--assume-generic"])
    assert refused.exit_code == 2 and "--assume-generic would plan it" in json.loads(refused.stdout)["sentence"]
    answer = json.loads(planned.stdout)
    assert planned.exit_code == 0 and "generic layers were assumed" in answer["sentence"]
    assert answer["lines"][0]["low"] < answer["weights_bytes"] < answer["lines"][0]["high"]
    line = json.dumps({"model": str(tmp_path), "max_model_len": 4096, "assume_generic": True})
    assert json.loads(capplan("plan --jsonl", stdin=line).stdout) == answer


@pytest.mark.parametrize(("command", "kind"), [("models", "models"), ("chips", "chips")])
def test_the_registry_is_listed_a_line_each(command, kind):
    result = capplan(command)
    lines = result.stdout.split("\n\n")[0].splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in lines[1:]] == list(names(kind))


def test_neuron_chips_are_listed_with_their_stacks():
    # aws-neuron-driver, v3/address_map.h: four stacks of 24 GiB and eight cores
    line = next(line for line in capplan("chips").stdout.splitlines() if line.startswith("trn2"))
    assert line.split()[1:4] == ["96.00", "4", "8"] and "1 or 2" in line


def test_chips_are_listed_with_what_the_driver_reports():
    line = next(line for line in capplan("chips").stdout.splitlines() if line.startswith("h100-sxm"))
    # start-up records vl-058 to vl-062 print 79.18 GiB of an H100 SXM
    assert "79.18" in line and "9.0" in line and "startup-logs" in line


def test_help_names_every_flag_and_the_exit_codes():
    text = capplan("plan --help").stdout
    for word in ("--tensor-parallel-size", "--kv-cache-memory-bytes", "-tp", "--json", "--jsonl", "3 close"):
        assert word in text, word
    assert all(name in capplan("--help").stdout for name in ("plan", "models", "chips"))
    assert capplan("--version").stdout.startswith("capplan, version ")


def test_an_unknown_command_is_named():
    result = capplan("plam Qwen/Qwen3-32B")
    assert result.exit_code == 2
    assert "plam" in result.stderr


def test_weights_of_a_logical_core_are_unfolded_too():
    words = f"{LLAMA} --engine vllm-neuron --chip trn2 -tp 4"
    result = capplan(f"explain weights {words}")
    assert result.exit_code == 0
    whole = int(re.search(r"layers, ([\d,]+) bytes", result.stdout).group(1).replace(",", ""))
    listed = [int(n.replace(",", "")) for n in re.findall(r"^    \S.* ([\d,]+)$", result.stdout, re.MULTILINE)]
    assert sum(listed) == whole == json.loads(capplan(f"plan {words} --json").stdout)["weights_bytes"]


def test_stated_weights_of_a_logical_core_have_no_tensors_and_a_sentence_says_so():
    result = capplan(
        "explain weights --engine vllm-neuron --chip trn2 --weights-bytes 8589934592 --bytes-per-block 9437184"
    )
    assert result.exit_code == 0
    assert "8,589,934,592 bytes of weights were stated" in result.stdout


def test_a_report_of_neuron_is_refused_in_one_sentence():
    for words in (
        f"report {LLAMA} --engine vllm-neuron --chip trn2",
        "report --engine vllm-neuron --chip trn2 --weights-bytes 8589934592",
    ):
        result = capplan(words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "there is no report of" in result.stderr and "--json" in result.stderr
