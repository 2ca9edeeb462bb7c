"""Plans of vLLM on Neuron: one object for one configuration and for many, weights of the graph, verdicts, answers."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import capplan
from capplan import Deployment, Refused, load_model, plan
from capplan.engines import vllm_neuron
from capplan.plan import VERDICTS
from capplan.plan.neuron import NeuronPlan
from capplan.plan.public import NEURON_FIGURES
from capplan.units import GIB
from capplan.views.neuron_text import neuron_text

QWEN = load_model("Qwen/Qwen3-32B")
LLAMA_70B = load_model("meta-llama/Llama-3.3-70B-Instruct")
GEMMA = load_model("google/gemma-2-9b-it")
MIXTRAL = load_model("mistralai/Mixtral-8x7B-v0.1")
DEEPSEEK = load_model("deepseek-ai/DeepSeek-V3")
SCHEMA = json.loads((Path(capplan.__file__).parent / "plan" / "plan.schema.json").read_text())
ON = Deployment(engine="vllm-neuron", chip="trn2", tensor_parallel_size=8)

# GPT-OSS 120B on Trainium3 with the reserve that was tested for it: weights and geometry as vectors NB35 and NK05
GPT_OSS = replace(ON, chip="trn3", weights_bytes=16_106_127_360, reserved_headroom_gib=4.0, max_model_len=131_072)
GPT_OSS_BLOCK = vllm_neuron.page(
    vllm_neuron.Geometry(n_layers=36, n_kv_heads=8, head_dim=64, kv_bits=16), block_size=32, tensor_parallel_size=8
).block_bytes

CASES = [
    (QWEN, ON),
    (QWEN, replace(ON, reserved_headroom_gib=4.0, gpu_memory_utilization=0.5, kv_gmu_budget_cap_fraction=7.0)),
    (QWEN, replace(ON, reserved_headroom_gib=0.0, tensor_parallel_size=4)),
    (QWEN, replace(ON, tensor_parallel_size=2, max_model_len=4096)),
    (QWEN, replace(ON, logical_nc_config=1, tensor_parallel_size=16, instance="trn2.48xlarge", kv_cache_dtype="fp8")),
    (QWEN, replace(ON, min_kv_budget_gib=0.0, tensor_parallel_size=2)),
    (QWEN, replace(ON, runtime_bytes_used=0, runtime_bytes_free=25_766_658_048)),
    (QWEN, replace(ON, cpu_compile=True, platform_target_override="gen3")),
    (QWEN, replace(ON, cpu_compile=True)),
    (QWEN, replace(ON, cpu_mode=True, host_available_bytes=200 * GIB, data_parallel_size=2)),
    (QWEN, replace(ON, cpu_mode=True)),
    (QWEN, replace(ON, num_gpu_blocks_override=100, tokens=1000, requests=3)),
    (QWEN, replace(ON, draft_model="Qwen/Qwen3-0.6B")),
    (QWEN, replace(ON, tensor_parallel_size=3)),
    (QWEN, replace(ON, max_model_len=-1, tensor_parallel_size=4)),
    (GEMMA, replace(ON, chip="inf2", instance="inf2.48xlarge")),
    (MIXTRAL, replace(ON, tensor_parallel_size=16)),
    (LLAMA_70B, ON),
    (LLAMA_70B, replace(ON, tensor_parallel_size=4)),
    (DEEPSEEK, replace(ON, tensor_parallel_size=64)),
    (
        DEEPSEEK,
        replace(ON, tensor_parallel_size=64, weights_bytes=12 * GIB, bytes_per_block=2_248_704, max_model_len=8192),
    ),
    (None, replace(GPT_OSS, bytes_per_block=294_912)),
    (None, ON),
]
PLANNED = [case for case in CASES if plan(*case).verdict != "refused"]


@pytest.mark.parametrize(("model", "asked"), CASES)
def test_the_public_form_keeps_its_schema(model, asked):
    p = plan(model, asked)
    assert isinstance(p, NeuronPlan)
    jsonschema.validate(json.loads(json.dumps(p.to_dict())), SCHEMA)
    assert p.sentence.endswith(".")
    assert neuron_text(p).splitlines()[0].endswith(p.sentence)


def test_the_schema_refuses_a_wrong_verdict_and_an_unknown_name():
    good = plan(*CASES[0]).to_dict()
    for bad in ({**good, "verdict": "maybe"}, {**good, "vram": 1}, {**good, "binding": "weights"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, SCHEMA)


@pytest.mark.parametrize(("model", "asked"), PLANNED)
def test_figures_on_one_screen_divide_into_each_other(model, asked):
    p = plan(model, asked)
    b = p.budget
    if asked.num_gpu_blocks_override is None:
        assert p.kv_blocks * p.kv_block_bytes <= p.kv_budget_bytes < (p.kv_blocks + 1) * p.kv_block_bytes
    assert p.kv_cache_tokens == int(p.max_concurrency * p.resolved.max_model_len)
    assert p.requests_admitted >= p.requests_held == p.requests_that_fit(p.resolved.max_model_len)
    if p.route != "cpu":
        assert sum(piece.bytes for piece in p.stack) == p.hbm_stack_bytes
        assert all(piece.bytes >= 0 for piece in p.stack)
        cache = [piece.bytes for piece in p.stack if piece.name == "cache"]
        assert cache == [p.kv_budget_bytes] * b.logical_cores_per_hbm_stack
    if p.verdict == "fits":
        assert p.requests_held >= 1
        assert b.starts


# The graph's weights


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # parameters as their makers publish them
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("meta-llama/Meta-Llama-3.1-8B", 8_030_261_248),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen3-32B", 32_762_123_264),
    ],
)
def test_one_rank_holds_every_parameter_in_two_bytes(name, parameters):
    assert plan(load_model(name), replace(ON, tensor_parallel_size=1)).weights_bytes == 2 * parameters


def test_ranks_share_all_but_norms_until_there_are_more_of_them_than_heads():
    one, eight, sixteen = (plan(QWEN, replace(ON, tensor_parallel_size=t)).weights_bytes for t in (1, 8, 16))
    assert eight == vllm_neuron.loaded(QWEN, tensor_parallel_size=8, expert_shards=8, act_bits=16).bytes
    # norms stay whole on every rank: two of 5120 and two of 128 a layer, one of 5120 at the end
    whole = 2 * (64 * (2 * 5120 + 2 * 128) + 5120)
    assert 8 * (eight - whole) == one - whole
    # from 8 key-value heads on, each rank holds a copy of one: 16 ranks keep 16 heads' keys and values
    copies = 2 * 64 * 8 * 2 * 128 * 5120
    assert 16 * (sixteen - whole) == one - whole + copies


def test_a_draft_adds_its_weights_and_its_layers():
    alone, small = plan(QWEN, ON), plan(load_model("Qwen/Qwen3-0.6B"), ON)
    both = plan(QWEN, replace(ON, draft_model="Qwen/Qwen3-0.6B"))
    assert both.weights_bytes == alone.weights_bytes + small.weights_bytes
    assert both.kv_block_bytes == alone.kv_block_bytes + small.kv_block_bytes


def test_a_stated_figure_replaces_the_graph_s():
    p = plan(
        DEEPSEEK,
        replace(ON, tensor_parallel_size=64, weights_bytes=12 * GIB, bytes_per_block=2_248_704, max_model_len=8192),
    )
    assert (p.weights_bytes, p.kv_block_bytes, p.weights.kind) == (12 * GIB, 2_248_704, "exact")
    assert p.verdict == "fits"
    refused = {f.field: f.why for f in plan(DEEPSEEK, replace(ON, tensor_parallel_size=64)).refused}
    assert "state weights_bytes" in refused["weights_bytes"]
    assert "state bytes_per_block" in refused["bytes_per_block"]


def test_what_is_known_is_given_where_something_else_is_missing():
    p = plan(DEEPSEEK, replace(ON, tensor_parallel_size=64, weights_bytes=12 * GIB))
    assert p.verdict == "refused"
    assert p.kv_budget_bytes == 6_957_847_019
    assert p.kv_blocks is None


# The worked reserve


def test_the_worked_reserve_of_gpt_oss_120b():
    p = plan(None, replace(GPT_OSS, bytes_per_block=GPT_OSS_BLOCK))
    assert (p.kv_budget_bytes, p.kv_block_bytes, p.kv_blocks) == (18_253_611_008, 294_912, 61_895)
    assert (p.requests_admitted, p.requests_held, p.kv_request_blocks) == (15, 15, 4096)
    assert p.verdict == "fits"
    assert p.environment_lines == ("export VLLM_NEURON_RESERVED_HEADROOM_GIB=4",)
    assert "reserved headroom: 4.00 GiB" in p.log_lines


# Parity


def test_a_device_that_reports_less_misses_the_compile_cache():
    known = {"weights_bytes": 8 * GIB, "max_model_len": 4096, "runtime_bytes_used": 0}
    small = replace(ON, **known, runtime_bytes_free=25_766_658_048)
    # vectors NK06 and NK07, then NK08 and NK09: three MiB move one count and not the other
    moved = plan(None, replace(small, bytes_per_block=5_242_880)).parity()
    assert (moved.compiled_blocks, moved.device_blocks, moved.holds) == (1327, 1326, False)
    assert "will miss" in moved.sentence
    assert "3,145,728" in moved.causes[0]
    same = plan(None, replace(small, bytes_per_block=4_194_304)).parity()
    assert (same.compiled_blocks, same.device_blocks, same.holds) == (1658, 1658, True)


def test_a_wrong_target_or_degree_is_named():
    p = plan(QWEN, ON)
    assert p.parity().holds
    assert p.parity().causes == ()
    assert "the target is trn3 and the chip trn2" in p.parity(target="trn3").sentence
    degree = p.parity(logical_nc_config=1)
    assert not degree.holds
    assert "NEURON_LOGICAL_NC_CONFIG is 1 while compiling and 2 on the device" in degree.sentence


def test_compiling_and_running_are_seen_from_both_sides():
    compiled = plan(QWEN, replace(ON, cpu_compile=True, platform_target_override="gen3"))
    assert compiled.route == "cpu_compile"
    assert compiled.kv_blocks == plan(QWEN, ON).kv_blocks == compiled.parity().device_blocks
    assert any("must be the same when it runs" in f.why for f in compiled.assumed)


# Verdicts and words


def test_what_a_worker_does_not_read_is_said_and_not_among_what_it_resolves():
    asked = replace(ON, nnodes=2, pool_role="decode", async_scheduling=False, usage_context="llm-class")
    p = plan(QWEN, asked)
    assert [f.field for f in p.overridden if f.happens == "ignored"] == [
        "usage_context",
        "nnodes",
        "pool_role",
        "async_scheduling",
    ]
    resolved = p.to_dict()["resolved"]
    assert not {f.field for f in p.overridden} & set(resolved)
    # what its rules read is listed, also where they only refuse it
    assert {"enable_expert_parallel", "quantization", "hf_overrides", "reserved_headroom_gib"} <= set(resolved)
    assert plan(QWEN, asked).kv_blocks == plan(QWEN, ON).kv_blocks


def test_many_at_once_of_a_setting_that_is_not_read_are_ignored_as_one_is():
    p = plan(QWEN, replace(ON, kv_cache_memory_bytes=np.array([1 << 30, 1 << 40])))
    assert [f.field for f in p.overridden] == ["kv_cache_memory_bytes"]
    assert p.kv_blocks == plan(QWEN, ON).kv_blocks


def test_what_is_ignored_beside_a_reserve_is_said():
    p = plan(QWEN, replace(ON, reserved_headroom_gib=4.0, gpu_memory_utilization=0.5, kv_gmu_budget_cap_fraction=7.0))
    assert [f.field for f in p.overridden] == ["gpu_memory_utilization", "kv_gmu_budget_cap_fraction"]
    assert (p.resolved.gpu_memory_utilization, p.resolved.kv_gmu_budget_cap_fraction) == (1.0, None)
    assert (p.policy, p.binding) == ("headroom", "headroom")
    assert p.total_budget_bytes is None


def test_a_budget_below_the_minimum_quotes_the_engine_and_names_ranks():
    p = plan(LLAMA_70B, replace(ON, tensor_parallel_size=4))
    assert p.verdict == "does-not-fit"
    assert "Computed KV cache budget is below minimum threshold" in p.sentence
    assert "tensor_parallel_size 8 is the fewest" in p.sentence


def test_a_budget_of_nothing_with_the_minimum_off_is_flagged():
    p = plan(LLAMA_70B, replace(ON, tensor_parallel_size=4, min_kv_budget_gib=0.0))
    assert (p.kv_budget_bytes, p.verdict) == (0, "does-not-fit")
    assert "No available memory for the cache blocks" in p.sentence


def test_a_pool_that_holds_a_request_only_with_its_null_block_is_close():
    base = replace(ON, weights_bytes=8 * GIB, min_kv_budget_gib=0.0, bytes_per_block=1_000_000)
    blocks = plan(None, replace(base, max_model_len=32)).kv_blocks
    words = [plan(None, replace(base, max_model_len=32 * n)).verdict for n in (blocks - 1, blocks, blocks + 1)]
    assert words == ["fits", "close", "does-not-fit"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tensor_parallel_size": 3}, "which 3 ranks cannot share equally"),
        ({"tensor_parallel_size": 64, "instance": "trn2.3xlarge"}, "there are 4 at LNC 2"),
        ({"instance": "trn3pd98.3xlarge"}, "has trn3 chips, and trn2 was asked"),
        ({"tensor_parallel_size": 32, "instance_chips": 2}, "there are 8 at LNC 2"),
        ({"pipeline_parallel_size": 2}, "capplan knows the tensors of one stage only"),
        ({"logical_nc_config": 3}, "NEURON_LOGICAL_NC_CONFIG"),
        ({"kv_cache_dtype": "fp4"}, "bytes_per_block states any other"),
        ({"block_size": 0}, "block_size is 0"),
        ({"tensor_parallel_size": 0}, "each must be 1 or more"),
        ({"tokens": 0}, "both must be 1 or more"),
        ({"tokens": 50_000, "max_model_len": 4096}, "lower tokens or raise max_model_len"),
        ({"max_model_len": 0}, "must be 1 or more"),
        ({"max_model_len": 50_000}, "longer than the 40,960 tokens"),
        ({"num_gpu_blocks_override": 0}, "must be 1 or more"),
        ({"reserved_headroom_gib": -1.0}, "VLLM_NEURON_RESERVED_HEADROOM_GIB"),
        ({"kv_gmu_budget_cap_fraction": 0.0}, "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        ({"runtime_bytes_used": -1, "runtime_bytes_free": -1}, "the runtime reports -1 bytes used"),
        ({"cpu_mode": True, "host_available_bytes": 0}, "the host has 0 bytes"),
        ({"cpu_mode": True, "cpu_compile": True}, "exclude each other"),
        ({"cpu_compile": True}, "NEURON_PLATFORM_TARGET_OVERRIDE"),
        ({"quantization": "fp8"}, "state weights_bytes"),
        ({"decode_context_parallel_size": 2}, "hold copies of each key-value head"),
    ],
)
def test_what_does_not_work_is_refused_with_a_sentence(changed, says):
    p = plan(QWEN, replace(ON, **changed))
    assert p.verdict == "refused"
    assert says in p.sentence


def test_settings_of_the_wrong_kind_or_engine_are_sentences():
    with pytest.raises(Refused, match=r"VLLM_NEURON_RESERVED_HEADROOM_GIB .* is '4GiB'"):
        plan(QWEN, replace(ON, reserved_headroom_gib="4GiB"))
    with pytest.raises(Refused, match="there is no Neuron chip 'h100-sxm'"):
        plan(QWEN, Deployment(engine="vllm-neuron"))
    with pytest.raises(Refused, match=r"reserved_headroom_gib was set, which vLLM 0\.33\.0 does not read"):
        plan(QWEN, Deployment(reserved_headroom_gib=4.0))


def test_an_instance_or_a_target_names_the_chip_where_nobody_else_does():
    assert plan(QWEN, Deployment(engine="vllm-neuron", instance="trn2.48xlarge")).chip.name == "trn2"
    compiled = Deployment(engine="vllm-neuron", cpu_compile=True, platform_target_override="gen4")
    assert plan(QWEN, compiled).chip.name == "trn3"


def test_more_ranks_than_heads_free_weights_and_no_cache():
    eight, many = plan(LLAMA_70B, ON), plan(LLAMA_70B, replace(ON, tensor_parallel_size=32))
    assert eight.kv_block_bytes == many.kv_block_bytes == 1_310_720
    assert many.page.kv_head_copies == 4
    assert many.weights_bytes < eight.weights_bytes


def test_ranks_that_share_a_context_hold_more_tokens():
    one = plan(LLAMA_70B, replace(ON, tensor_parallel_size=32, max_model_len=8192))
    four = plan(LLAMA_70B, replace(one.asked, decode_context_parallel_size=4))
    assert four.kv_request_blocks * 4 == one.kv_request_blocks
    assert four.requests_held > one.requests_held


# Answers


@pytest.mark.parametrize(("model", "asked"), PLANNED)
def test_what_would_work_works(model, asked):
    p = plan(model, asked)
    for answer in p.answers:
        if answer.value is None:
            continue
        changes = {answer.field: answer.value}
        if answer.field == "reserved_headroom_gib":
            changes = {answer.field: float(answer.typed)}
        trial = replace(p.asked, **changes)
        if answer.field in ("gpu_memory_utilization", "kv_gmu_budget_cap_fraction"):
            trial = replace(trial, reserved_headroom_gib=None)
        if answer.field == "tensor_parallel_size" and asked.weights_bytes is not None:
            continue
        found = plan(model, trial)
        assert found.budget.starts or answer.name == "headroom_of_default"
        if answer.name in ("headroom_of_default", "smallest_utilization"):
            assert found.kv_budget_bytes == answer.kv_budget_bytes


def test_fewest_ranks_are_the_first_that_start():
    p = plan(LLAMA_70B, replace(ON, tensor_parallel_size=32))
    found = p.answer("fewest_ranks")
    assert found.value == 8
    assert plan(LLAMA_70B, replace(ON, tensor_parallel_size=4)).verdict == "does-not-fit"
    here = {"logical_nc_config": 1, "instance": "trn2.48xlarge", "max_model_len": 8192}
    single = plan(LLAMA_70B, replace(ON, tensor_parallel_size=64, **here))
    assert single.answer("fewest_ranks").value == 16


def test_a_cap_for_tokens_holds_them():
    p = plan(QWEN, ON)
    found = p.cap_for_tokens(20_000)
    trial = plan(QWEN, replace(ON, kv_gmu_budget_cap_fraction=float(found.typed), max_model_len=20_000))
    assert trial.requests_held >= 1
    assert p.cap_for_tokens(10_000_000).value is None
    exact = p.cap_for_bytes(3 * GIB)
    assert plan(QWEN, replace(ON, kv_gmu_budget_cap_fraction=float(exact.typed))).kv_budget_bytes == 3 * GIB


# Many at once

ARRAYS = {
    "reserved_headroom_gib": np.array([0.0, 0.1, 1.7, 4.0, 13.999, 24.0, 40.0, -1.0, np.nan]),
    "kv_gmu_budget_cap_fraction": np.array([0.001, 0.1, 0.3, 0.9, 1.0, 1.5, 0.0, np.nan]),
    "min_kv_budget_gib": np.array([-1.0, 0.0, 0.1, 6.0, 30.0, np.nan]),
    "gpu_memory_utilization": np.array([0.01, 0.5, 0.9, 1.0, 1.2]),
    "max_model_len": np.array([1, 31, 4096, 40_960, 50_000]),
    "weights_bytes": np.array([0, 10**9, 2 * 10**10, 3 * 10**10]),
}


@pytest.mark.parametrize("field", ARRAYS)
@pytest.mark.parametrize("policy", ["default", "headroom"])
def test_many_are_one_repeated(field, policy):
    asked = replace(ON, reserved_headroom_gib=2.5 if policy == "headroom" else None, max_model_len=8192)
    values = ARRAYS[field]
    many = plan(QWEN, replace(asked, **{field: values}))
    ones = [plan(QWEN, replace(asked, **{field: value.item()})) for value in values]
    words = [many.verdict] * len(values) if isinstance(many.verdict, str) else [VERDICTS[code] for code in many.verdict]
    assert words == [p.verdict for p in ones]
    for name in NEURON_FIGURES:
        got = getattr(many, name)
        for i, one in enumerate(ones):
            if one.verdict == "refused":
                continue
            wanted = getattr(one, name)
            assert (got is None) == (wanted is None), name
            assert got is None or np.broadcast_to(got, values.shape)[i] == wanted, name


def test_a_plan_for_many_has_no_sentence_and_no_public_form():
    many = plan(QWEN, replace(ON, reserved_headroom_gib=np.array([1.0, 2.0])))
    for ask in (lambda: many.sentence, many.to_dict):
        with pytest.raises(ValueError, match="one configuration"):
            ask()
    assert many.answers == many.stack == many.log_lines == ()
    assert "2 configurations" in repr(many)


def test_many_pairs_of_a_reserve_and_a_minimum():
    reserve, least = np.meshgrid(np.linspace(0, 24, 25), np.linspace(0, 8, 9))
    many = plan(QWEN, replace(ON, reserved_headroom_gib=reserve.ravel(), min_kv_budget_gib=least.ravel()))
    assert many.verdict.dtype == np.int8
    assert many.kv_blocks.shape == many.verdict.shape == (225,)
    assert set(many.verdict.tolist()) == {0, 2}


def test_curves_stand_where_the_plan_does_under_both_policies():
    reserve = plan(None, replace(GPT_OSS, bytes_per_block=294_912))
    default = reserve.at(reserved_headroom_gib=None)
    assert (reserve.cap_curve.now, reserve.cap_curve.default, reserve.headroom_curve.now) == (None, 0.3, 4.0)
    assert (default.cap_curve.now, default.headroom_curve.now) == (0.3, None)
    assert reserve.default_budget_bytes == default.default_budget_bytes == default.kv_budget_bytes
    for p in (reserve, default):
        for curve in (p.cap_curve, p.headroom_curve):
            assert len(curve.values) == len(curve.kv_budget_bytes) == len(curve.binding)
            assert (np.diff(curve.values) > 0).all()
            assert curve.minimum_bytes == p.minimum_bytes


def test_curves_are_missing_where_no_budget_is():
    nothing = plan(None, ON)
    assert (nothing.cap_curve, nothing.headroom_curve, nothing.default_budget_bytes) == (None, None, None)


def test_what_is_said_of_a_refusal_is_the_engine_s_text_or_the_broken_rule():
    p = plan(None, replace(GPT_OSS, bytes_per_block=294_912))
    assert p.says == ""
    assert p.at(reserved_headroom_gib=22.0).says.startswith("Computed KV cache budget is below minimum threshold")
    assert "it must be a finite number of GiB" in p.at(reserved_headroom_gib=-1.0).says
    many = p.at(reserved_headroom_gib=np.array([1.0, 22.0]))
    assert (many.says, many.cap_curve, many.headroom_curve) == ("", None, None)


# Numbers that int64 may not hold: the plan for many refuses, or agrees with the plan of each

WHOLE = [1, 3000, 1 << 36, (1 << 46) + 3000, 1 << 62, (1 << 63) - 1]
LARGE = {
    **dict.fromkeys(("max_model_len", "max_num_seqs", "max_num_batched_tokens", "tokens", "requests"), WHOLE),
    **dict.fromkeys(("weights_bytes", "num_gpu_blocks_override", "kv_cache_memory_bytes"), WHOLE),
    **{name: [0.5, 1.0, 2.0**33, 2.0**40, 1e300] for name in ("reserved_headroom_gib", "min_kv_budget_gib")},
}


@pytest.mark.parametrize("headroom", [None, 4.0])
@pytest.mark.parametrize("name", LARGE)
def test_large_numbers_are_refused_or_answered_as_each_alone(unlike, name, headroom):
    asked = replace(ON, reserved_headroom_gib=headroom)
    names = [figure for figure in NEURON_FIGURES if figure != "binding"]
    assert unlike(QWEN, asked, names, **{name: np.array(LARGE[name])}) == []
