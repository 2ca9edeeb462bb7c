"""Architectures that no family names: refused by name, and planned as a plain decoder only where a person asks."""

import json

import numpy as np
import pytest

from capplan.cli.main import answer_line
from capplan.hub import load_model
from capplan.model import from_config, load_family
from capplan.plan import plan
from capplan.registry import Refused, load, names
from capplan.settings.deployment import Deployment
from capplan.views.state import PlannerState
from capplan.views.text import plan_text

LLAMA = "meta-llama/Meta-Llama-3.1-8B"
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"
NEMOTRON = "nvidia/Nemotron-H-8B-Base-8K"
BAND = load_family("generic").weights_percent


def renamed(name, **changed):
    """The config of a model of the registry under an architecture that nobody has."""
    table = load("models", name)
    config = {**table["config"], **dict.fromkeys(table.get("nulls", ()))}
    return {**config, "architectures": ["InventedForCausalLM"], **changed}


def guessed(name=LLAMA, **changed):
    beside = load("models", name).get("hf_quant_config")
    return from_config(renamed(name, **changed), name="mine", origin="a test", beside=beside, assume_generic=True)


def refusal(name=LLAMA, *, assume_generic=False, **changed):
    with pytest.raises(Refused) as error:
        from_config(renamed(name, **changed), name="mine", origin="a test", assume_generic=assume_generic)
    return str(error.value)


def asked(**settings):
    return Deployment(**{"chip": "h100-sxm", "max_model_len": 4096, "assume_generic": True, **settings})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(renamed(LLAMA)))
    return tmp_path


def test_an_unknown_architecture_is_refused_by_name_with_the_flag_that_would_plan_it(folder):
    for says in (refusal(), answer_line(json.dumps({"model": str(folder)}))["sentence"]):
        assert "no graph for architecture InventedForCausalLM" in says
        assert "registry/families/<name>.toml" in says
        assert "--assume-generic would plan it as a plain decoder, with a wider band" in says


def test_the_weights_of_a_guess_carry_the_band_of_the_registry():
    answer = plan(guessed(), asked())
    line = answer.lines[0]
    assert (line.name, line.kind) == ("weights", "estimated")
    assert line.low == line.bytes * BAND.low // 100
    assert line.high == -(-line.bytes * BAND.high // 100)
    assert BAND in answer.sources and BAND.method == "assumed"
    surely = plan(load_model(LLAMA), asked())
    width = answer.tightest.kv_budget_high_bytes - answer.tightest.kv_budget_low_bytes
    known = surely.tightest.kv_budget_high_bytes - surely.tightest.kv_budget_low_bytes
    assert width == known + line.high - line.low


@pytest.mark.parametrize("engine", ["vllm-0.33.0", "blis-kernel"])
@pytest.mark.parametrize("name", [LLAMA, MIXTRAL, "Qwen/Qwen2.5-72B-Instruct", "zai-org/GLM-4.5-Air"])
def test_a_known_model_under_an_invented_name_has_its_own_weights_within_the_band(name, engine):
    known = plan(load_model(name), asked(chip="b300", engine=engine))
    guess = plan(guessed(name), asked(chip="b300", engine=engine))
    assert guess.lines[0].low <= known.weights_bytes <= guess.lines[0].high
    assert guess.kv_block_bytes == known.kv_block_bytes
    if name in (LLAMA, MIXTRAL):
        assert guess.weights_bytes == known.weights_bytes


def test_the_band_covers_every_model_of_the_registry_that_reads_as_a_plain_decoder():
    shares = []
    for name in names("models"):
        if "config" not in load("models", name):
            continue
        try:
            guess = plan(guessed(name), asked(chip="b300"))
        except Refused:
            continue
        known = plan(load_model(name), asked(chip="b300"))
        shares.append(round(1000 * known.weights_bytes / guess.weights_bytes))
    # The figures that the reason of the band in registry/families/generic.toml states.
    assert f"{len(shares)} models" in BAND.why
    assert (min(shares), max(shares)) == (776, 1003)
    assert BAND.low <= 77 and BAND.high >= 101


def test_the_verdict_is_taken_at_the_ends_of_the_band():
    guess, known = guessed(), load_model(LLAMA)
    sure, unsure = (plan(model, asked(chip="l4")) for model in (known, guess))
    assert (sure.verdict, unsure.verdict) == ("fits", "close")
    assert sure.weights_bytes == unsure.weights_bytes
    assert plan(guess, asked(chip="h100-sxm")).verdict == "fits"
    assert plan(guessed("meta-llama/Meta-Llama-3.1-70B"), asked()).verdict == "does-not-fit"


def test_sentence_and_finding_say_what_was_assumed():
    answer = plan(guessed(), asked())
    assert answer.sentence.endswith(
        "The architecture InventedForCausalLM is not known and generic layers were assumed: "
        "its weights may lie between 70 and 135 % of the figure."
    )
    finding = answer.assumed[0]
    assert (finding.field, finding.happens) == ("architectures", "generic layers")
    for word in ("InventedForCausalLM", "grouped attention", "cache's pages", "registry/families/<name>.toml"):
        assert word in finding.why
    assert "generic layers were assumed" in plan_text(answer)
    assert answer.to_dict()["resolved"]["assume_generic"] is True


def test_arrays_are_answered_as_one_by_one():
    lengths = np.array([1024, 8192, 131072])
    many = plan(guessed(), asked(chip="l4", max_model_len=lengths))
    for i, length in enumerate(lengths):
        one = plan(guessed(), asked(chip="l4", max_model_len=int(length)))
        assert ("fits", "close", "does-not-fit", "refused")[many.verdict[i]] == one.verdict
        assert many.kv_blocks[i] == one.kv_blocks


def test_experts_are_found_by_their_usual_keys():
    base = {"moe_intermediate_size": 512, "num_experts_per_tok": 2, "num_local_experts": None}
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        model = guessed(MIXTRAL, **{**base, key: 8})
        assert (model.experts.n_experts, model.experts.intermediate) == (8, 512)
    some = guessed(MIXTRAL, **{**base, "num_experts": 8, "first_k_dense_replace": 2, "num_shared_experts": 3})
    assert some.experts.layers == tuple(range(2, 32))
    assert some.experts.shared_intermediate == 3 * 512
    listed = guessed(MIXTRAL, **{**base, "num_experts": 8, "moe_layer_freq": [0, 1] * 16})
    assert listed.experts.layers == tuple(range(1, 32, 2))
    assert guessed(MIXTRAL, **{**base, "num_experts": 0}).experts is None


def test_replicas_of_guessed_experts_carry_the_band_too():
    settings = asked(
        chip="b300", tensor_parallel_size=4, enable_expert_parallel=True, enable_eplb=True, num_redundant_experts=4
    )
    line = next(line for line in plan(guessed(MIXTRAL), settings).lines if line.name == "eplb")
    assert 0 < line.low < line.bytes < line.high


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantization_config": {"quant_method": "squeeze"}}, "quant_method in config.json is 'squeeze'"),
        ({"kv_lora_rank": 512}, "kv_lora_rank in config.json is 512"),
        ({"ssm_state_size": 128}, "ssm_state_size in config.json is 128"),
        ({"layer_types": ["mamba"] * 32}, "layer_types in config.json has 'mamba'"),
        ({"hidden_size": None}, "hidden_size in config.json is missing"),
    ],
)
def test_what_no_band_covers_stays_refused(changed, words, generic):
    says = refusal(assume_generic=generic, **changed)
    assert words in says and "InventedForCausalLM" in says
    assert "--assume-generic would" not in says


def test_a_known_family_is_planned_without_a_key_that_the_band_covers():
    config = {**load("models", NEMOTRON)["config"], "use_bias": True}
    with pytest.raises(Refused, match=r"use_bias in config.json is True; .* --assume-generic would plan it without"):
        from_config(config, name="mine", origin="a test")
    model = from_config(config, name="mine", origin="a test", assume_generic=True)
    answer = plan(model, asked())
    assert answer.weights_bytes == plan(load_model(NEMOTRON), asked()).weights_bytes
    assert answer.assumed[0].field == "use_bias" and "registry/families/nemotron-h.toml" in answer.assumed[0].why
    assert "What NemotronHForCausalLM does with use_bias is not known and was left out" in answer.sentence


@pytest.mark.parametrize("name", [LLAMA, MIXTRAL, "deepseek-ai/DeepSeek-V2-Lite", "deepseek-v4.1-flash"])
def test_a_known_architecture_ignores_the_flag(name):
    plain = plan(load_model(name), asked(assume_generic=False)).to_dict()
    flagged = plan(load_model(name, assume_generic=True), asked()).to_dict()
    assert flagged["resolved"].pop("assume_generic") is True
    assert plain["resolved"].pop("assume_generic") is False
    assert json.dumps(flagged) == json.dumps(plain)


def test_model_and_deployment_must_agree():
    with pytest.raises(Refused, match="say so in the deployment too, with assume_generic=True"):
        plan(guessed(), asked(assume_generic=False))


def test_a_guess_is_planned_on_gpus_only():
    with pytest.raises(Refused, match=r"InventedForCausalLM .* choose an engine on GPUs"):
        plan(guessed(), asked(engine="vllm-neuron", chip="trn2"))


def test_the_page_takes_the_flag_from_its_address(folder):
    state = PlannerState(f"model={folder}&assume_generic=true&max_model_len=4096")
    assert state.plan.model.guess is not None and state.plan.assumed[0].field == "architectures"
    assert "assume_generic=true" in state.to_query().lower()
    without = PlannerState(f"model={folder}&max_model_len=4096")
    assert "--assume-generic would plan it" in without.news
    state.say(assume_generic=None)
    assert "--assume-generic would plan it" in state.note
