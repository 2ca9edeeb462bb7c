"""The plan: one object for one configuration and for many, verdicts, sentences, the public form."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import capplan
from capplan import Deployment, Refused, load_model, plan
from capplan.engines.frame import ROWS
from capplan.plan import VERDICTS, GpuPlan
from capplan.settings.deployment import SETTINGS
from capplan.solve import remedies

QWEN = load_model("Qwen/Qwen3-32B")
LLAMA_70B = load_model("meta-llama/Meta-Llama-3.1-70B")
GEMMA = load_model("google/gemma-2-9b-it")
MIXTRAL = load_model("mistralai/Mixtral-8x7B-v0.1")
DEEPSEEK = load_model("deepseek-ai/DeepSeek-V3")
SCHEMA = json.loads((Path(capplan.__file__).parent / "plan" / "plan.schema.json").read_text())

CASES = [
    (QWEN, Deployment(tensor_parallel_size=4, max_model_len=32_768)),
    (QWEN, Deployment(tensor_parallel_size=2, pipeline_parallel_size=3, gpu_memory_utilization=0.8)),
    (LLAMA_70B, Deployment(tensor_parallel_size=2)),
    (LLAMA_70B, Deployment(chip="l4")),
    (GEMMA, Deployment(chip="l4", max_num_seqs=64)),
    (GEMMA, Deployment(chip="b200", kv_cache_dtype="fp8", enforce_eager=True)),
    (MIXTRAL, Deployment(chip="a100-80gb", tensor_parallel_size=4, enable_expert_parallel=True)),
    (MIXTRAL, Deployment(chip="b200", tensor_parallel_size=2, data_parallel_size=2)),
    (DEEPSEEK, Deployment(chip="h200", tensor_parallel_size=8)),
    (DEEPSEEK, Deployment(chip="b200", tensor_parallel_size=8, decode_context_parallel_size=8)),
    (QWEN, Deployment(chip="t4", tensor_parallel_size=8)),
    (QWEN, Deployment(chip="mi300x")),
    (QWEN, Deployment(tensor_parallel_size=2, kv_cache_memory_bytes=20_000_000_000)),
    (QWEN, Deployment(tensor_parallel_size=5)),
    (QWEN, Deployment(max_model_len=50_000)),
]
SINGLE = [case for case in CASES if plan(*case).verdict != "refused"]
FITS = [case for case in SINGLE if plan(*case).verdict == "fits"]


@pytest.mark.parametrize(("model", "asked"), CASES)
def test_the_public_form_keeps_its_schema(model, asked):
    jsonschema.validate(json.loads(json.dumps(plan(model, asked).to_dict())), SCHEMA)


def test_the_schema_refuses_a_wrong_verdict_and_an_unknown_name():
    good = plan(*CASES[0]).to_dict()
    for bad in ({**good, "verdict": "maybe"}, {**good, "vram": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, SCHEMA)


@pytest.mark.parametrize(("model", "asked"), SINGLE)
def test_figures_on_one_screen_divide_into_each_other(model, asked):
    p = plan(model, asked)
    for rank in p.ranks:
        assert rank.fixed_bytes == sum(line.bytes for line in rank.lines)
        assert rank.fixed_low_bytes <= rank.fixed_bytes <= rank.fixed_high_bytes
        assert rank.kv_budget_low_bytes <= rank.kv_budget_bytes <= rank.kv_budget_high_bytes
        assert rank.kv_blocks * rank.kv_block_bytes <= rank.kv_budget_bytes
        for line in rank.lines:
            assert 0 <= line.low <= line.bytes <= line.high
            if line.name in ("weights", "engine_state"):
                assert sum(size for _, size in line.parts) == line.bytes
    assert p.kv_cache_tokens == int(p.max_concurrency * p.resolved.max_model_len)
    assert p.outside_bytes == p.device_bytes - (
        p.requested_bytes if p.requested_bytes is not None else p.fixed_bytes + p.kv_budget_bytes
    )
    assert sum(rank.count for rank in p.ranks) == asked.n_chips
    assert p.communication_bytes == p.eplb_bytes == 0


@pytest.mark.parametrize(("model", "asked"), FITS)
def test_a_plan_that_fits_holds_a_request(model, asked):
    p = plan(model, asked)
    assert p.requests_that_fit(p.resolved.max_model_len) >= 1
    assert p.max_concurrency >= 1
    assert p.estimated_max_model_len == p.resolved.max_model_len


@pytest.mark.parametrize(("model", "asked"), SINGLE)
def test_the_estimated_length_starts_and_one_more_token_does_not(model, asked):
    p = plan(model, asked)
    longest = p.estimated_max_model_len
    if longest:
        fitting = plan(model, replace(asked, max_model_len=longest))
        assert fitting.kv_request_blocks < fitting.kv_blocks
    if longest and longest < p.resolved.max_model_len:
        longer = plan(model, replace(asked, max_model_len=longest + 1))
        assert longer.kv_request_blocks >= longer.kv_blocks


ARRAYS = {
    "max_model_len": np.array([1, 17, 1000, 4096, 8192]),
    "max_num_seqs": np.array([1, 7, 64, 256, 512]),
    "max_num_batched_tokens": np.array([512, 1024, 2048, 8192, 16_384]),
    "gpu_memory_utilization": np.array([0.3, 0.5, 0.8, 0.92, 0.99]),
    "kv_cache_memory_bytes": np.array([1, 10**8, 10**9, 20 * 10**9, 60 * 10**9]),
}
FIGURES = (
    *(f"{name}_bytes" for name in ROWS if hasattr(GpuPlan, f"{name}_bytes")),
    "fixed_bytes",
    "kv_budget_bytes",
    "kv_blocks",
    "kv_request_blocks",
    "kv_cache_tokens",
    "max_concurrency",
    "estimated_max_model_len",
    "outside_bytes",
    "pre_snapshot_bytes",
    "requested_bytes",
)


@pytest.mark.parametrize("field", ARRAYS)
@pytest.mark.parametrize(("model", "asked"), SINGLE)
def test_many_are_one_repeated(model, asked, field):
    if field == "max_num_seqs":
        asked = replace(asked, max_num_batched_tokens=8192)
    if field == "max_num_batched_tokens":
        asked = replace(asked, max_num_seqs=256)
    values = ARRAYS[field]
    many = plan(model, replace(asked, **{field: values}))
    ones = [plan(model, replace(asked, **{field: value.item()})) for value in values]
    # Utilization changes nothing where the cache is stated: then the plan is one, and says so in a word.
    words = [many.verdict] * len(values) if isinstance(many.verdict, str) else [VERDICTS[code] for code in many.verdict]
    assert words == [p.verdict for p in ones]
    for name in FIGURES:
        wanted = [getattr(p, name) for p in ones]
        got = getattr(many, name)
        if wanted[0] is None:
            assert got is None
        else:
            assert np.broadcast_to(got, values.shape).tolist() == wanted, name
    lengths = np.array([1, 16, 17, 4096])
    for p in ones[:1]:
        fit = p.requests_that_fit(lengths)
        assert fit.tolist() == [p.requests_that_fit(int(t)) for t in lengths]


def test_findings_of_many_carry_a_mask():
    many = plan(QWEN, Deployment(tensor_parallel_size=4, max_model_len=np.array([1000, 40_960, 40_961])))
    assert many.refused[0].mask.tolist() == [False, False, True]
    assert many.verdict.dtype == np.int8
    assert many.verdict.tolist() == [0, 0, 3]


# Invariants


@settings(max_examples=60, deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    length=st.integers(1, 40_960),
    seqs=st.integers(1, 1024),
    share=st.floats(0.1, 0.95),
)
def test_more_budget_never_holds_fewer_and_more_length_never_needs_fewer(tensor, length, seqs, share):
    asked = Deployment(
        tensor_parallel_size=tensor, max_model_len=length, max_num_seqs=seqs, gpu_memory_utilization=share
    )
    p = plan(QWEN, asked)
    more = plan(QWEN, replace(asked, gpu_memory_utilization=min(1.0, share + 0.05)))
    assert more.kv_blocks >= p.kv_blocks
    longer = plan(QWEN, replace(asked, max_model_len=min(40_960, length + 1)))
    assert longer.kv_request_blocks >= p.kv_request_blocks


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 16_384), seqs=st.integers(1, 256))
def test_admission_sets_aside_at_least_what_steady_decode_holds(tokens, seqs):
    p = plan(GEMMA, Deployment(chip="h200", max_num_batched_tokens=max(tokens, seqs), max_num_seqs=seqs))
    length = p.resolved.max_model_len
    assert p.sequence_admission_bytes(length) >= p.sequence_fixed_bytes(length)
    assert p.sequence_bytes(length) == p.sequence_variable_bytes(length) + p.sequence_fixed_bytes(length)
    assert plan(QWEN, Deployment()).sequence_fixed_bytes() == 0


def test_weights_fall_with_ranks_and_data_parallel_leaves_dense_ones_alone():
    by_rank = [plan(QWEN, Deployment(tensor_parallel_size=t)).weights_bytes for t in (1, 2, 4, 8)]
    assert by_rank == sorted(by_rank, reverse=True)
    assert plan(QWEN, Deployment(data_parallel_size=4)).weights_bytes == by_rank[0]


# Verdicts and words


def test_as_lengths_grow_a_plan_fits_then_is_close_then_does_not_fit():
    asked = Deployment(max_model_len=np.arange(1000, 40_961, 64), gpu_memory_utilization=0.88)
    found = plan(QWEN, asked).verdict.tolist()
    assert found == sorted(found)
    assert set(found) == {0, 1, 2}


def test_a_claim_beyond_what_is_free_does_not_fit_and_says_what_would():
    p = plan(QWEN, Deployment(tensor_parallel_size=4, gpu_memory_utilization=1.0))
    assert p.verdict == "does-not-fit"
    change = next(remedies(p))
    changes, words = change.settings, change.cost
    assert "gpu_memory_utilization" in changes
    assert words in p.sentence
    assert plan(QWEN, replace(p.asked, **changes)).verdict == "fits"


@pytest.mark.parametrize(("model", "asked"), [case for case in SINGLE if case not in FITS])
def test_what_would_work_works(model, asked):
    found = [plan(model, replace(asked, **change.settings)).verdict for change in remedies(plan(model, asked))]
    assert set(found) <= {"fits", "close"} and found


def test_a_sentence_says_what_was_asked_what_there_is_by_how_much_and_what_would_work():
    p = plan(LLAMA_70B, Deployment(tensor_parallel_size=2))
    assert p.verdict == "does-not-fit"
    need, left = p.kv_request_blocks * p.kv_block_bytes / 2**30, p.kv_budget_bytes / 2**30
    for part in (
        "Meta-Llama-3.1-70B in bfloat16 on 2 x H100 SXM 80 GB, requests up to 131,072 tokens",
        f"{need:.2f} GiB",
    ):
        assert part in p.sentence
    assert f"{left:.2f} GiB are left" in p.sentence
    assert f"max_model_len {p.estimated_max_model_len:,} starts as it is" in p.sentence
    assert "tensor_parallel_size 4 starts" in p.sentence


def test_weights_that_do_not_fit_quote_the_engine():
    p = plan(LLAMA_70B, Deployment(chip="h100-sxm"))
    assert "No available memory for the cache blocks" in p.sentence
    assert p.kv_budget_bytes == 0
    assert p.tightest.short_bytes > 0


def test_minus_one_takes_the_longest_length_that_fits():
    p = plan(LLAMA_70B, Deployment(tensor_parallel_size=2, max_model_len=-1))
    asked = plan(LLAMA_70B, Deployment(tensor_parallel_size=2))
    assert p.resolved.max_model_len == asked.estimated_max_model_len
    assert p.overridden[0].field == "max_model_len"
    assert p.verdict in ("fits", "close")


def test_a_stated_cache_is_taken_as_it_is_and_utilization_is_ignored():
    p = plan(QWEN, Deployment(tensor_parallel_size=4, kv_cache_memory_bytes=10**10, gpu_memory_utilization=0.5))
    assert p.requested_bytes is None
    assert p.kv_budget_bytes == 10**10
    assert [f.field for f in p.overridden] == ["gpu_memory_utilization"]


def test_the_start_check_plans_against_stated_blocks():
    def stated(**said):
        return plan(QWEN, Deployment(chip="h200", tensor_parallel_size=8, **said))

    # vllm 0.33.0, kv_cache_planning.py, get_kv_cache_configs: the available memory becomes the stated blocks'
    need = stated(max_model_len=8192).kv_request_blocks
    enough, one_less = (stated(max_model_len=8192, num_gpu_blocks_override=need + n) for n in (1, 0))
    assert (enough.verdict, one_less.verdict) == ("fits", "does-not-fit")
    assert one_less.tightest.lacking_bytes == one_less.kv_block_bytes
    assert one_less.estimated_max_model_len == 8192 - 16
    beyond = stated(max_model_len=8192, num_gpu_blocks_override=10_000_000)
    assert beyond.verdict == "does-not-fit" and "the device has" in beyond.sentence
    assert "blocks" in one_less.sentence and "bytes were stated" in one_less.sentence


def test_a_load_is_held_or_not():
    asked = Deployment(tensor_parallel_size=4, tokens=8192, requests=50)
    p = plan(QWEN, asked)
    assert p.holds_load is True
    assert plan(QWEN, replace(asked, requests=10**6)).holds_load is False
    assert plan(QWEN, Deployment()).holds_load is None


def test_a_setting_of_the_wrong_kind_is_a_sentence():
    with pytest.raises(Refused, match="max_model_len is '32k'; it must be a whole number"):
        plan(QWEN, Deployment(max_model_len="32k"))
    with pytest.raises(Refused, match="there is no chip 'h1000'"):
        plan(QWEN, Deployment(chip="h1000"))


def test_every_datum_of_a_plan_says_where_it_is_from():
    for model, asked in SINGLE:
        for datum in plan(model, asked).sources:
            assert datum.origin()
            assert datum.method


def test_a_plan_shows_itself_in_a_notebook():
    bundle = plan(*CASES[0])._repr_mimebundle_()
    assert "FITS" in bundle["text/plain"]
    assert "<svg" in bundle["text/html"] or "<div" in bundle["text/html"]
    many = plan(QWEN, Deployment(max_model_len=np.array([1, 2])))
    assert "2 configurations" in many._repr_mimebundle_()["text/plain"]


# Numbers that int64 may not hold: the plan for many refuses, or agrees with the plan of each

STARTS = {
    "max_model_len": 4096,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
    "kv_cache_memory_bytes": 20 * 10**9,
    "num_gpu_blocks_override": 3000,
    "tokens": 4096,
    "requests": 4,
}
"""The settings of counts that may be arrays, each with a number that starts."""

MOST = (1 << 63) - 1
WRAPS = {
    # 2 ** 46 blocks of 9 * 2 ** 18 bytes are a multiple of 2 ** 64: what is left looks like 3000 blocks.
    "num_gpu_blocks_override": (1 << 46) + 3000,
    "kv_cache_memory_bytes": MOST,
}
"""Numbers whose bytes int64 would wrap to others that look right."""

LARGE = st.integers(1, MOST) | st.builds(
    lambda shift, more: (1 << shift) + more, st.integers(0, 62), st.integers(0, 8192)
)
FEW = settings(max_examples=5, deadline=None, phases=[Phase.generate])
QWEN_8B = load_model("Qwen/Qwen3-8B")
PAIRS = [(name, other) for name in STARTS for other in STARTS if name != other]


def within(name):
    """Numbers up to the most that an array of a setting may hold, the most itself often among them."""
    most = SETTINGS[name].most
    return st.integers(1, most) | st.sampled_from([most, most - 1, most // 2])


@pytest.mark.parametrize("name", STARTS)
@FEW
@given(data=st.data())
def test_large_numbers_are_answered_as_each_alone(unlike, name, data):
    values = [STARTS[name], SETTINGS[name].most, *data.draw(st.lists(within(name), max_size=6))]
    assert unlike(QWEN_8B, Deployment(), FIGURES, **{name: np.array(values)}) == []


@pytest.mark.parametrize("name", STARTS)
def test_numbers_that_would_wrap_are_refused(name):
    for beyond in (SETTINGS[name].most + 1, WRAPS.get(name, 1 << 62), MOST):
        with pytest.raises(Refused, match=f"{name} has numbers beyond"):
            plan(QWEN_8B, Deployment(**{name: np.array([STARTS[name], beyond])}))


def test_blocks_whose_bytes_would_wrap_are_refused():
    blocks = np.array([3000, SETTINGS["num_gpu_blocks_override"].most])
    wide = replace(Deployment(chip="h200"), block_size=1 << 15, num_gpu_blocks_override=blocks)
    with pytest.raises(Refused, match="which int64 does not count"):
        plan(load_model("meta-llama/Meta-Llama-3.1-70B"), replace(wide, tensor_parallel_size=2))


@pytest.mark.parametrize(("name", "other"), [pair for pair in PAIRS if pair[0] < pair[1]])
@FEW
@given(data=st.data())
def test_two_large_numbers_are_answered_as_each_alone(unlike, name, other, data):
    rows = data.draw(st.lists(st.tuples(within(name), within(other)), max_size=3))
    worst = tuple(SETTINGS[each].most for each in (name, other))
    first, second = (np.array(column) for column in zip(worst, *rows, strict=True))
    assert unlike(QWEN_8B, Deployment(), FIGURES, **{name: first, other: second}) == []


@pytest.mark.parametrize(("name", "single"), PAIRS)
@FEW
@given(data=st.data(), large=LARGE)
def test_a_large_number_beside_many_is_refused_or_answered_as_each_alone(unlike, name, single, data, large):
    many = np.array([STARTS[name], SETTINGS[name].most, *data.draw(st.lists(within(name), max_size=3))])
    for alone in (STARTS[single], WRAPS.get(single, 1 << 62), large):
        assert unlike(QWEN_8B, Deployment(**{single: alone}), FIGURES, **{name: many}) == []


def test_lengths_up_to_the_guard_are_exact():
    p, lengths = plan(DEEPSEEK, Deployment(chip="h200", tensor_parallel_size=8)), [1, (1 << 30) + 1, (1 << 36) - 1]
    for held in (p.sequence_bytes, p.sequence_own_bytes, p.requests_that_fit):
        assert held(np.array(lengths)).tolist() == [held(length) for length in lengths]
    with pytest.raises(Refused, match="int64 does not hold"):
        p.sequence_bytes(np.array([1 << 36]))
