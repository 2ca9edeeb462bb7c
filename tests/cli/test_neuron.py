"""The command line of vLLM on Neuron: the worked vectors line by line, flags, variables, bad input, exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from capplan.cli.main import main
from capplan.cli.neuron import VERBS, answer_line

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "neuron-vectors.json").read_text())
ROWS = [(verb, row) for verb in VERBS for row in VECTORS[verb]]
HEADROOM = "VLLM_NEURON_RESERVED_HEADROOM_GIB"


def run(*words, **more):
    return CliRunner().invoke(main, ["neuron", *map(str, words)], **more)


def test_there_are_103_vectors():
    assert len(ROWS) == 103


@pytest.mark.parametrize(("verb", "row"), ROWS, ids=[row["id"] for _, row in ROWS])
def test_a_line_is_answered_as_the_vector_says(verb, row):
    found = answer_line(verb, json.dumps(row["asked"]))
    assert {key: found.get(key) for key in row.get("gives", {})} == row.get("gives", {})
    steps = row.get("steps", {})
    assert {key: found.get("intermediate", {}).get(key) for key in steps} == steps
    if "refused" not in row:
        assert "error" not in found
        return
    assert found["code"] == row["refused"]["code"]
    assert all(word in found["error"] for word in row["refused"]["names"])
    assert not any(word in found["error"] for word in row["refused"]["never"])


@pytest.mark.parametrize("verb", VERBS)
def test_lines_are_answered_in_order_one_for_one(verb):
    lines = [json.dumps(row["asked"]) for row in VECTORS[verb]] + ["", "{", "[1]"]
    answer = run(verb, "--jsonl", input="\n".join(lines))
    found = [json.loads(line) for line in answer.output.splitlines()]
    assert answer.exit_code == 0
    assert found[:-2] == [answer_line(verb, line) for line in lines[:-3]]
    assert "not JSON" in found[-2]["error"]
    assert "a question is a JSON object" in found[-1]["error"]


@pytest.mark.parametrize(
    ("verb", "asked", "says"),
    [
        ("budget", {"platfrom": "trn2"}, "the closest is platform"),
        ("budget", {"model_weight_bytes": 1}, "platform is missing"),
        ("budget", {"platform": "trn2"}, "model_weight_bytes is missing"),
        ("budget", {"platform": "gen3", "model_weight_bytes": 1}, "write trn2"),
        ("budget", {"platform": 2, "model_weight_bytes": 1}, "platform is 2; it must be a text"),
        ("budget", {"platform": "trn2", "model_weight_bytes": 1.5}, "weights_bytes is 1.5"),
        ("budget", {"platform": "trn2", "model_weight_bytes": -1}, "-1 bytes"),
        ("budget", {"platform": "trn2", "model_weight_bytes": True}, "must be a whole number"),
        ("budget", {"platform": "trn2", "model_weight_bytes": 1, "gpu_memory_utilization": "most"}, "'most'"),
        ("budget", {"platform": "trn2", "model_weight_bytes": 1, "env": ["A=1"]}, "env is ['A=1']"),
        ("budget", {"platform": "trn2", "model_weight_bytes": 1, "env": {HEADROOM: 4}}, "a variable's value is a text"),
        ("budget", {"platform": "trn2", "model_weight_bytes": 1, "reserved_headroom_gib": "4GiB"}, HEADROOM),
        ("blocks", {"available_bytes": 1}, "max_model_len is missing"),
        ("blocks", {"available_bytes": -1, "bytes_per_block": 1, "max_model_len": 1}, "available_bytes is -1"),
        ("blocks", {"available_bytes": 1, "bytes_per_block": 0, "max_model_len": 1}, "bytes_per_block is 0"),
        ("headroom", {"model_weight_bytes": 1}, "hbm_stack_bytes is missing"),
        ("headroom", {"hbm_stack_bytes": 1, "model_weight_bytes": 1}, "logical_cores_per_hbm_stack is missing"),
        ("explain", {"policy": "headroom"}, "message is missing"),
        ("explain", {"message": "x", "policy": "reserve"}, "there are default and headroom"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(verb, asked, says):
    if verb == "blocks" and says.startswith("max_model_len"):
        asked = {**asked, "bytes_per_block": 1}
    assert says in answer_line(verb, json.dumps(asked))["error"]


def test_flags_and_variables_ask_the_same():
    asked = ["--chip", "trn3", "--weights-bytes", 16_106_127_360]
    by_flag = run("budget", *asked, "--reserved-headroom-gib", 4, "--json")
    by_name = run("budget", *asked, f"{HEADROOM}=4", "--json")
    assert by_flag.exit_code == by_name.exit_code == 0
    assert json.loads(by_flag.output) == json.loads(by_name.output)
    assert json.loads(by_flag.output)["available_bytes"] == 18_253_611_008
    assert "18,253,611,008" in run("budget", *asked, f"--reserved-headroom-gib={4}").output


def test_the_worked_reserve_of_gpt_oss_120b_from_budget_to_requests():
    cache = ["--total-num-kv-heads", 8, "--head-dim", 64, "--num-layers", 36, "--kv-cache-dtype", "bf16"]
    answer = run("blocks", "--available-bytes", 18_253_611_008, "-h")
    assert answer.exit_code == 0
    asked = ["--available-bytes", 18_253_611_008, "--max-model-len", 131_072, "--tensor-parallel-size", 8, *cache]
    answer = run("blocks", *asked, "--json")
    found = json.loads(answer.output)
    assert (found["num_blocks"], found["max_len_requests_guaranteed"]) == (61_895, 15)
    words = ["plan", "--engine", "vllm-neuron", "--chip", "trn3", "-tp", "8", "--weights-bytes", "16106127360"]
    words += [
        "--bytes-per-block",
        str(found["bytes_per_block_all_layers"]),
        "--max-model-len",
        "131072",
        f"{HEADROOM}=4",
    ]
    planned = CliRunner().invoke(main, [*words, "--json"])
    assert planned.exit_code == 0
    assert json.loads(planned.output)["kv_blocks"] == 61_895


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["budget", "--chip", "trn2", "--weights-bytes", 1], 0),
        (["budget", "--chip", "trn2", "--weights-bytes", 22_119_081_575], 1),
        (["budget", "--chip", "trn2", "--weights-bytes", 1, f"{HEADROOM}=4GiB"], 2),
        (["budget", "--chip"], 2),
        (["budget", "leftover"], 2),
        (["budget", "--jsonl", "leftover"], 2),
        (["headroom", "--platform", "trn2", "--weights-bytes", 1], 0),
        (["headroom", "--platform", "trn2", "--weights-bytes", 30_000_000_000], 1),
        (["headroom", "--host-available-bytes", 68_719_476_736, "--local-workers", 4], 0),
        (["explain", "NRT_RESOURCE in nrt_load_util"], 0),
        (["explain"], 2),
        (["nothing"], 2),
    ],
)
def test_exit_codes(words, code):
    assert run(*words).exit_code == code


def test_the_largest_reserve_is_shown_rounded_down():
    # vector NM04: 9.996 GiB
    shown = run("headroom", "--platform", "trn2", "--weights-bytes", 13_962_938_680).output
    assert "9.99" in shown
    assert "10.00" not in shown


def test_an_error_is_explained_in_the_numbers_of_the_deployment():
    message = "[NCC_EOOM002] Maximum peak HBM usage of 28.44GB exceeds HBM limit of 24.00GB for Trn2."
    at_hand = ["--platform", "trn2", "--weights-bytes", 9_663_676_416, "--reserved-headroom-gib", 4]
    shown = run("explain", message, *at_hand).output
    for words in ("compile_hbm", f"increase {HEADROOM}", "from 4 to 5", "about 5 steps", "would exceed 14.00 GiB"):
        assert words in shown
    assert "leave one of them out" in run("explain", message, *at_hand, "--policy", "default").output
    assert "decrease VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION" in run("explain", message).output


def test_what_is_ignored_or_looks_like_a_slip_is_said():
    env = {HEADROOM: "4", "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION": "7", "VLLM_NEURON_MIN_KV_BUDGET": "2"}
    asked = {"platform": "trn2", "model_weight_bytes": 1, "gpu_memory_utilization": 0.5, "env": env}
    found = answer_line("budget", json.dumps(asked))
    assert [line.partition(":")[0] for line in found["overridden"]] == [
        "gpu_memory_utilization",
        "kv_gmu_budget_cap_fraction",
    ]
    assert any("VLLM_NEURON_MIN_KV_BUDGET is not read" in line for line in found["warnings"])
    assert any(
        "No available memory" in line
        for line in answer_line(
            "budget",
            json.dumps({**asked, "env": {HEADROOM: "40", "VLLM_NEURON_MIN_KV_BUDGET_GIB": "0"}}),
        )["warnings"]
    )


def test_plan_prints_text_and_json_and_its_exit_codes_are_those_of_gpus():
    def planned(*words):
        return CliRunner().invoke(main, ["plan", *words])

    on = ["--engine", "vllm-neuron", "--chip", "trn2"]
    good = planned("Qwen/Qwen3-32B", *on, "-tp", "8")
    assert good.exit_code == 0
    assert "FITS" in good.output
    assert planned("meta-llama/Llama-3.3-70B-Instruct", *on, "-tp", "4").exit_code == 1
    assert planned("Qwen/Qwen3-32B", *on, "-tp", "3").exit_code == 2
    assert planned("Qwen/Qwen3-32B", "--engine", "vllm-neuron").exit_code == 2
    assert planned(*on).exit_code == 2
    line = {
        "model": "Qwen/Qwen3-32B",
        "engine": "vllm-neuron",
        "chip": "trn2",
        "tensor_parallel_size": 8,
        HEADROOM: "4",
    }
    answer = CliRunner().invoke(main, ["plan", "--jsonl"], input=json.dumps(line))
    assert json.loads(answer.output)["headroom_bytes"] == 4 << 30
