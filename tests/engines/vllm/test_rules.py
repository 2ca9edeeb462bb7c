"""What vLLM will not start with: for each rule a deployment that it refuses and one that it allows."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from capplan.engines.release import load_engine
from capplan.engines.vllm import resolve
from capplan.engines.vllm.case import Case
from capplan.engines.vllm.rules import DISCRETE_RULES, NUMERIC_RULES
from capplan.hub import load_model
from capplan.plan import plan
from capplan.registry import Refused, load_chip
from capplan.settings.deployment import SETTINGS, Deployment
from capplan.settings.table import MOST, ON_NEURON

ENGINE = load_engine("vllm-0.33.0")
RULES = {rule.name: rule for rule in (*DISCRETE_RULES, *NUMERIC_RULES)}
NUMERIC_NAMES = [rule.name for rule in NUMERIC_RULES]

LLAMA = "meta-llama/Meta-Llama-3.1-8B"
QWEN = "Qwen/Qwen3-32B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
LITE = "deepseek-ai/DeepSeek-V2-Lite"
GEMMA = "google/gemma-2-9b-it"
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"
HYBRID = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
PHI = "microsoft/Phi-3-medium-4k-instruct"
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One deployment that a rule refuses, with what its sentence says, and one that it allows."""

    model: str
    refuses: dict[str, Any]
    allows: dict[str, Any]
    says: tuple[str, ...]
    overrides: dict[str, Any] = field(default_factory=dict)
    overrides_allowed: dict[str, Any] | None = None


EXAMPLES = {
    "ranks-at-least-one": Example(
        model=LLAMA,
        refuses={"tensor_parallel_size": 0},
        allows={"tensor_parallel_size": 1},
        says=("0, 1, 1 and 1", "1 or more"),
    ),
    "heads-divide": Example(
        model=LLAMA,
        refuses={"tensor_parallel_size": 5},
        allows={"tensor_parallel_size": 4},
        says=("32 heads", "5 ranks", "among 1, 2, 4, 8, 16, 32"),
    ),
    "key-value-heads-divide": Example(
        model=PHI,
        refuses={"tensor_parallel_size": 4},
        allows={"tensor_parallel_size": 2},
        says=("10 key-value heads", "4 ranks", "among 1, 2, 5, 10, 20, 40"),
    ),
    # vllm 0.33.0 stops with: 32064 is not divisible by 5
    "vocabulary-divides": Example(
        model=PHI,
        refuses={"tensor_parallel_size": 5},
        allows={"tensor_parallel_size": 2},
        says=("32,064", "not divisible by 5", "power of two"),
    ),
    "matrices-divide": Example(
        model=MIXTRAL,
        refuses={"data_parallel_size": 3},
        allows={"data_parallel_size": 2},
        says=("14,336", "layers.experts", "3 ranks", "choose fewer"),
    ),
    "block-scales-divide": Example(
        model=QWEN,
        refuses={"tensor_parallel_size": 16},
        allows={"tensor_parallel_size": 8},
        says=("128 x 128", "no multiple", "fewer ranks"),
        overrides={"quantization_config": BLOCKS},
        overrides_allowed={"quantization_config": BLOCKS},
    ),
    "layers-for-every-stage": Example(
        model=LLAMA,
        refuses={"pipeline_parallel_size": 33},
        allows={"pipeline_parallel_size": 32},
        says=("32 layers", "33 stages", "up to 32"),
    ),
    "experts-for-expert-parallel": Example(
        model=LLAMA,
        refuses={"enable_expert_parallel": True},
        allows={"enable_expert_parallel": False},
        says=("no experts", "leave it out"),
    ),
    "contexts-divide-ranks": Example(
        model=DEEPSEEK,
        refuses={"tensor_parallel_size": 8, "decode_context_parallel_size": 3},
        allows={"tensor_parallel_size": 8, "decode_context_parallel_size": 8},
        says=("tensor_parallel_size 8", "decode_context_parallel_size 3", "among 1, 2, 4, 8"),
    ),
    "contexts-need-copies-of-heads": Example(
        model=QWEN,
        refuses={"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
        allows={"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
        says=("decode_context_parallel_size 2", "8 of them", "8 ranks hold 1 of each", "or choose 1"),
    ),
    "contexts-without-windows": Example(
        model=GEMMA,
        refuses={"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
        allows={"tensor_parallel_size": 16, "decode_context_parallel_size": 1},
        says=("sliding windows", "choose 1"),
    ),
    "one-rank-for-a-prefill": Example(
        model=LLAMA,
        refuses={"prefill_context_parallel_size": 2},
        allows={"prefill_context_parallel_size": 1},
        says=("prefill_context_parallel_size is 2", "no law", "choose 1"),
    ),
    "exchange-planned": Example(
        model=DEEPSEEK,
        refuses={"tensor_parallel_size": 8, "decode_context_parallel_size": 8, "dcp_comm_backend": "a2a"},
        allows={"tensor_parallel_size": 8, "decode_context_parallel_size": 8, "dcp_comm_backend": "ag_rs"},
        says=("dcp_comm_backend a2a", "no law", "choose ag_rs"),
    ),
    "interleaving-divides-block": Example(
        model=DEEPSEEK,
        refuses={"tensor_parallel_size": 8, "decode_context_parallel_size": 8, "dcp_kv_cache_interleave_size": 3},
        allows={"tensor_parallel_size": 8, "decode_context_parallel_size": 8, "dcp_kv_cache_interleave_size": 4},
        says=("dcp_kv_cache_interleave_size is 3", "does not divide", "choose a divisor"),
    ),
    "replicas-need-expert-parallel": Example(
        model=MIXTRAL,
        refuses={"tensor_parallel_size": 4, "enable_eplb": True},
        allows={"tensor_parallel_size": 4, "enable_eplb": True, "enable_expert_parallel": True},
        says=("enable_eplb needs enable_expert_parallel", "leave it out"),
    ),
    "replicas-not-negative": Example(
        model=MIXTRAL,
        refuses={"tensor_parallel_size": 4, "num_redundant_experts": 4},
        allows={
            "tensor_parallel_size": 4,
            "num_redundant_experts": 4,
            "enable_eplb": True,
            "enable_expert_parallel": True,
        },
        says=("num_redundant_experts is 4", "0 without enable_eplb"),
    ),
    "replicas-shared-equally": Example(
        model=MIXTRAL,
        refuses={
            "tensor_parallel_size": 4,
            "num_redundant_experts": 3,
            "enable_eplb": True,
            "enable_expert_parallel": True,
        },
        allows={
            "tensor_parallel_size": 4,
            "num_redundant_experts": 4,
            "enable_eplb": True,
            "enable_expert_parallel": True,
        },
        says=("8 experts and 3 replicas", "4 ranks", "num_redundant_experts 4"),
    ),
    "drafted-not-negative": Example(
        model=LLAMA,
        refuses={"speculative_method": "ngram", "num_speculative_tokens": -1},
        allows={"speculative_method": "ngram", "num_speculative_tokens": 4},
        says=("num_speculative_tokens is -1", "0 or more"),
    ),
    "drafter-has-no-weights": Example(
        model=LLAMA,
        refuses={"speculative_method": "eagle3", "num_speculative_tokens": 4},
        allows={"speculative_method": "ngram", "num_speculative_tokens": 4},
        says=("speculative_method eagle3", "choose ngram or ngram_gpu"),
    ),
    "state-mode-known": Example(
        model=HYBRID,
        refuses={"mamba_cache_mode": "some"},
        allows={"mamba_cache_mode": "align"},
        says=("'some'", "none, align, all"),
    ),
    "dtype-known": Example(
        model=LLAMA,
        refuses={"dtype": "int8"},
        allows={"dtype": "half"},
        says=("'int8'", "auto, bfloat16, float16, float32"),
    ),
    "float16-stable": Example(
        model=GEMMA,
        refuses={"dtype": "float16"},
        allows={"dtype": "bfloat16"},
        says=("unstable in float16", "bfloat16 or float32"),
    ),
    "bfloat16-on-chip": Example(
        model=LLAMA,
        refuses={"chip": "t4", "dtype": "bfloat16"},
        allows={"chip": "t4", "dtype": "float16"},
        says=("T4", "8.0", "choose float16"),
    ),
    "quantization-of-checkpoint": Example(
        model=LLAMA,
        refuses={"quantization": "awq"},
        allows={"quantization": "fp8"},
        says=("quantization awq",),
    ),
    "quantized-in-16-bit": Example(
        model=DEEPSEEK,
        refuses={"tensor_parallel_size": 8, "dtype": "float32"},
        allows={"tensor_parallel_size": 8, "dtype": "bfloat16"},
        says=("float32", "fp8", "bfloat16 or float16"),
    ),
    "layout-known": Example(
        model=QWEN,
        refuses={"chip": "mi300x"},
        allows={"chip": "h100-sxm"},
        says=("is stored as fp8-block", "MI300X", "registry/engines/vllm/0.33.0.toml"),
        overrides={"quantization_config": BLOCKS},
        overrides_allowed={"quantization_config": BLOCKS},
    ),
    "cache-format-known": Example(
        model=LLAMA,
        refuses={"kv_cache_dtype": "int4"},
        allows={"kv_cache_dtype": "fp8"},
        says=("'int4'", "auto", "fp8"),
    ),
    "cache-format-of-model": Example(
        model=LLAMA,
        refuses={"kv_cache_dtype": "float16"},
        allows={"kv_cache_dtype": "bfloat16"},
        says=("kv_cache_dtype float16", "dtype bfloat16", "auto, bfloat16 or fp8"),
    ),
    "block-size-positive": Example(
        model=LLAMA, refuses={"block_size": 0}, allows={"block_size": 16}, says=("block_size is 0", "1 or more")
    ),
    "latent-sizes-served": Example(
        model=LITE,
        refuses={},
        allows={},
        says=("(256, 64, 128)", "(128, 64, 128)"),
        overrides={"qk_nope_head_dim": 256},
        overrides_allowed={},
    ),
    "kernel-exists": Example(
        model=LLAMA,
        refuses={"chip": "t4", "kv_cache_dtype": "fp8"},
        allows={"chip": "l4", "kv_cache_dtype": "fp8"},
        says=("float16 with kv_cache_dtype fp8", "T4", "TRITON_ATTN takes"),
    ),
    "graph-mode-known": Example(
        model=LLAMA,
        refuses={"cudagraph_mode": "SOME"},
        allows={"cudagraph_mode": "PIECEWISE"},
        says=("'SOME'", "NONE, PIECEWISE, FULL"),
    ),
    "performance-mode-known": Example(
        model=LLAMA,
        refuses={"performance_mode": "fast"},
        allows={"performance_mode": "throughput"},
        says=("'fast'", "balanced, interactivity, throughput"),
    ),
    "utilization-is-a-share": Example(
        model=LLAMA,
        refuses={"gpu_memory_utilization": 1.01},
        allows={"gpu_memory_utilization": 1.0},
        says=("1.01", "above 0 and at most 1", "0.92"),
    ),
    "length-positive": Example(
        model=LLAMA, refuses={"max_model_len": 0}, allows={"max_model_len": 1}, says=("max_model_len is 0", "-1")
    ),
    "length-of-model": Example(
        model=LLAMA,
        refuses={"max_model_len": 131_073},
        allows={"max_model_len": 131_072},
        says=("131,073", "131,072 tokens", "up to 131072"),
    ),
    "capture-size-positive": Example(
        model=LLAMA,
        refuses={"max_cudagraph_capture_size": -1},
        allows={"max_cudagraph_capture_size": 0},
        says=("max_cudagraph_capture_size is -1", "0 or more"),
    ),
    "batched-tokens-positive": Example(
        model=LLAMA,
        refuses={"max_num_batched_tokens": 0},
        allows={"max_num_batched_tokens": 256, "max_num_seqs": 256},
        says=("max_num_batched_tokens is 0", "1 or more"),
    ),
    "sequences-positive": Example(
        model=LLAMA, refuses={"max_num_seqs": 0}, allows={"max_num_seqs": 1}, says=("max_num_seqs is 0", "1 or more")
    ),
    "tokens-for-every-sequence": Example(
        model=LLAMA,
        refuses={"max_num_seqs": 256, "max_num_batched_tokens": 255},
        allows={"max_num_seqs": 256, "max_num_batched_tokens": 256},
        says=("max_num_batched_tokens 255", "max_num_seqs 256", "raise the first or lower the second"),
    ),
    "steps-within-31-bits": Example(
        model=LLAMA,
        refuses={"max_num_batched_tokens": 1 << 31},
        allows={"max_num_batched_tokens": (1 << 31) - 1},
        says=("max_num_batched_tokens 2,147,483,648", "below 2,147,483,648"),
    ),
    "cache-bytes-positive": Example(
        model=LLAMA,
        refuses={"kv_cache_memory_bytes": 0},
        allows={"kv_cache_memory_bytes": 1},
        says=("kv_cache_memory_bytes is 0", "1 or more"),
    ),
    "blocks-positive": Example(
        model=LLAMA,
        refuses={"num_gpu_blocks_override": 0},
        allows={"num_gpu_blocks_override": 1},
        says=("num_gpu_blocks_override is 0", "1 or more"),
    ),
    "load-positive": Example(
        model=LLAMA, refuses={"requests": 0}, allows={"requests": 1}, says=("0 requests", "1 or m")
    ),
    "load-within-length": Example(
        model=LLAMA,
        refuses={"max_model_len": 4096, "tokens": 4097},
        allows={"max_model_len": 4096, "tokens": 4096},
        says=("4,097 tokens", "max_model_len 4,096", "lower tokens or raise"),
    ),
}


def case(model: str, settings: dict[str, Any], overrides: dict[str, Any] | None = None) -> Case:
    """What a rule looks at, for one deployment."""
    asked = Deployment(**settings, hf_overrides=json.dumps(overrides) if overrides else None)
    graph, chip = load_model(model, overrides=overrides), load_chip(asked.chip)
    return Case(model=graph, asked=asked, d=resolve(graph, asked, chip, ENGINE).d, chip=chip, engine=ENGINE)


def test_every_rule_has_an_example_and_a_source():
    assert set(EXAMPLES) == set(RULES)
    assert len(RULES) == len(DISCRETE_RULES) + len(NUMERIC_RULES)
    assert all(rule.source and rule.field in Deployment.__dataclass_fields__ for rule in RULES.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_refuses_what_it_is_for_and_says_what_would_work(name):
    rule, example = RULES[name], EXAMPLES[name]
    c = case(example.model, example.refuses, example.overrides)
    assert rule.holds(c) is False
    sentence = rule.says(c)
    assert all(words in sentence for words in example.says), sentence
    p = plan(c.model, c.asked)
    assert p.verdict == "refused"
    assert sentence in [finding.why for finding in p.refused]
    assert all(finding.field and finding.happens == "refused" and finding.source for finding in p.refused)
    assert p.sentence.endswith(".")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_allows_what_is_right(name):
    rule, example = RULES[name], EXAMPLES[name]
    overrides = example.overrides if example.overrides_allowed is None else example.overrides_allowed
    c = case(example.model, example.allows, overrides)
    assert rule.holds(c) is True
    assert plan(c.model, c.asked).refused == ()


@pytest.mark.parametrize("name", NUMERIC_NAMES)
def test_a_rule_of_numbers_is_a_mask_for_many(name):
    rule, example = RULES[name], EXAMPLES[name]
    both = {
        key: np.array([example.refuses[key], value]) if example.refuses.get(key, value) != value else value
        for key, value in example.allows.items()
    }
    p = plan(load_model(example.model), Deployment(**both))
    masks = [finding.mask.tolist() for finding in p.refused if finding.source == rule.source]
    assert [True, False] in masks
    assert p.verdict.tolist()[0] == 3 and p.verdict.tolist()[1] != 3


@pytest.mark.parametrize("share", [0.0, -0.5, 1.0000001, float("nan"), float("inf")])
def test_a_share_outside_its_bounds_is_refused(share):
    p = plan(load_model(LLAMA), Deployment(gpu_memory_utilization=share))
    assert [finding.field for finding in p.refused] == ["gpu_memory_utilization"]


SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "max_cudagraph_capture_size",
    "tokens",
    "requests",
)
# A large value of these is only much, or more than the engine takes notice of.
MAY_BE_LARGE = ("block_size", "data_parallel_size", "kv_cache_memory_bytes", "max_cudagraph_capture_size", "requests")


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("number", [-5, 0, 1 << 31, 10**30])
def test_an_absurd_number_is_refused_in_a_sentence_that_names_it(name, number):
    if number > MOST:
        with pytest.raises(Refused, match=f"{name} is beyond 9,223,372,036,854,775,807"):
            plan(load_model(LLAMA), Deployment(**{name: number}))
        return
    p = plan(load_model(LLAMA), Deployment(**{name: number}))
    assert p.sentence
    if number >= 0 and name in MAY_BE_LARGE and (number or name == "max_cudagraph_capture_size"):
        return
    assert p.verdict == "refused"
    # "0 ranks", "tensor, ... sizes are 0": the number stands in the sentence, and the setting's name or its words do
    assert f"{number:,}" in p.sentence or str(number) in p.sentence, p.sentence
    assert any(word in p.sentence for word in (name, *name.split("_")[:1])), p.sentence


@pytest.mark.parametrize("name", ["kv_cache_memory_bytes", "max_num_seqs", "requests", "tensor_parallel_size"])
def test_a_number_beyond_any_float_is_refused_or_answered(name):
    with pytest.raises(Refused, match=f"{name} is beyond"):
        plan(load_model(LLAMA), Deployment(**{name: 10**400}))


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row.read_by == ON_NEURON])
def test_a_setting_of_another_engine_is_refused_by_name(name):
    value = {"count": 4, "flag": True, "text": "x"}.get(SETTINGS[name].kind, 0.5)
    with pytest.raises(Refused, match=f"{name} was set, which vLLM 0.33.0 does not read"):
        plan(load_model(LLAMA), Deployment(**{name: value}))


def test_several_broken_numbers_are_all_named():
    p = plan(load_model(LLAMA), Deployment(tensor_parallel_size=5, max_model_len=0, gpu_memory_utilization=2))
    assert {finding.field for finding in p.refused} >= {
        "tensor_parallel_size",
        "max_model_len",
        "gpu_memory_utilization",
    }


@pytest.mark.parametrize(
    ("model", "settings", "fits", "not_served"),
    [
        # vllm 0.33.0: FlashAttention takes multiples of 16 tokens; of latent kernels FlashInfer's takes 32
        (LLAMA, {}, 32, 24),
        (LITE, {"chip": "b200"}, 32, 33),
    ],
)
def test_a_block_is_a_multiple_of_what_a_kernel_takes(model, settings, fits, not_served):
    rule = RULES["kernel-exists"]
    assert rule.holds(case(model, {**settings, "block_size": fits}))
    wrong = case(model, {**settings, "block_size": not_served})
    assert not rule.holds(wrong)
    assert f"block_size {not_served}" in rule.says(wrong)
    assert "multiples of" in rule.says(wrong)


def test_a_copied_key_value_head_is_whole_to_the_block_scales():
    # vllm 0.33.0, QKVParallelLinear: with more ranks than key-value heads each holds one whole, 128 rows here
    c = case("Qwen/Qwen3-235B-A22B", {"tensor_parallel_size": 8}, {"quantization_config": BLOCKS})
    assert c.n_kv_heads == 4
    assert RULES["block-scales-divide"].holds(c)


@pytest.mark.parametrize(
    ("said", "field", "works"),
    [
        ({"enable_eplb": True}, "enable_eplb", "turn it on"),
        ({"num_redundant_experts": 8}, "num_redundant_experts", "0 without enable_eplb"),
        (
            {"enable_expert_parallel": True, "enable_eplb": True, "num_redundant_experts": 3},
            "num_redundant_experts",
            "choose num_redundant_experts 8",
        ),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size", "choose 1"),
        ({"dcp_kv_cache_interleave_size": 3}, "dcp_kv_cache_interleave_size", "a divisor"),
        ({"dcp_comm_backend": "a2a"}, "dcp_comm_backend", "choose ag_rs"),
        ({"speculative_method": "mtp", "num_speculative_tokens": 1}, "speculative_method", "choose ngram"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens", "0 or more"),
        ({"mamba_cache_mode": "some"}, "mamba_cache_mode", "none, align, all"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override", "1 or more"),
    ],
)
def test_a_setting_of_ranks_or_drafts_is_refused_with_what_would_work(said, field, works):
    p = plan(load_model("deepseek-ai/DeepSeek-V3"), Deployment(chip="h200", tensor_parallel_size=8, **said))
    assert p.verdict == "refused"
    assert p.refused[0].field == field
    assert works in p.sentence
