"""Budgets, refusals, answers and diagnoses of vLLM on Neuron: the worked vectors, each row of bad input, invariants."""

import json
from math import nextafter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capplan.engines import vllm_neuron as neuron
from capplan.engines.release import load_engine
from capplan.engines.vllm_neuron import inverse
from capplan.engines.vllm_neuron.diagnosis import failure_class, overshoot
from capplan.registry import Refused, names
from capplan.settings import environment
from capplan.settings.deployment import Deployment
from capplan.units import GIB

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "neuron-vectors.json").read_text())
ENGINE = load_engine("vllm-neuron")
HEADROOM, CAP, MINIMUM = (
    "VLLM_NEURON_RESERVED_HEADROOM_GIB",
    "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION",
    "VLLM_NEURON_MIN_KV_BUDGET_GIB",
)


def name_of(row):
    return row["id"]


def budget(weights=8 * GIB, env=None, **said):
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **said, **environment.settings(env or {})})
    return neuron.worker_budget(d, ENGINE, weights_bytes=weights)


def asked_of(row):
    """A vector's inputs as a deployment says them."""
    renamed = {"platform": "chip", "model_weight_bytes": "weights"}
    return {renamed.get(key, key): value for key, value in row["asked"].items()}


def figures(b):
    return {
        **{name: getattr(b, name) for name in neuron.Budget.__dataclass_fields__},
        "computed_available_bytes": b.kv_budget_bytes,
    }


# The vectors


@pytest.mark.parametrize("row", [row for row in VECTORS["budget"] if "gives" in row], ids=name_of)
def test_a_budget_is_the_vector_s(row):
    b = budget(**asked_of(row))
    assert b.starts
    assert (b.route, b.policy, b.kv_budget_bytes) == tuple(
        row["gives"][key] for key in ("route", "policy", "available_bytes")
    )
    assert {key: figures(b)[key] for key in row["steps"]} == row["steps"]
    assert type(b.kv_budget_bytes) is int


@pytest.mark.parametrize(
    "row", [row for row in VECTORS["budget"] if row.get("steps") and "refused" in row], ids=name_of
)
def test_a_budget_below_the_minimum_has_the_vector_s_steps_and_a_sentence(row):
    b = budget(**asked_of(row))
    assert not b.starts
    assert {key: figures(b)[key] for key in row["steps"]} == row["steps"]
    says = neuron.refusal(b)
    for word in row["refused"]["names"]:
        assert word in says
    for word in row["refused"]["never"]:
        assert word not in says


@pytest.mark.parametrize("row", [r for r in VECTORS["budget"] if not r.get("steps") and "refused" in r], ids=name_of)
def test_what_cannot_be_computed_is_refused_with_its_word_and_names(row):
    with pytest.raises(Refused) as error:
        budget(**asked_of(row))
    assert error.value.code == row["refused"]["code"]
    for word in row["refused"]["names"]:
        assert word in str(error.value)


@pytest.mark.parametrize("row", [row for row in VECTORS["budget"] if "otherwise" in row], ids=name_of)
def test_another_reading_is_told_from_the_engine_s(row):
    asked = asked_of(row)
    weights = asked.pop("weights", 0)
    env = asked.pop("env")
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **asked, **environment.settings(env)})
    c = neuron.case(d, ENGINE, weights_bytes=weights)
    found = neuron.other_reading(c, neuron.budget_of(c))
    assert found.available_bytes == row["otherwise"] != row["gives"]["available_bytes"]


@pytest.mark.parametrize("row", VECTORS["blocks"], ids=name_of)
def test_blocks_are_the_vector_s(row):
    asked, gives = row["asked"], row["gives"]
    g = neuron.Geometry(
        n_layers=asked["num_layers"],
        n_kv_heads=asked["total_num_kv_heads"],
        head_dim=asked["head_dim"],
        kv_bits=8 * asked["kv_element_bytes"],
    )
    page = neuron.page(g, block_size=asked["block_size"], tensor_parallel_size=asked["tensor_parallel_size"])
    need = neuron.request_blocks(max_model_len=asked["max_model_len"], block_size=asked["block_size"])
    pool = neuron.pool(budget_bytes=asked["available_bytes"], block_bytes=page.block_bytes, request_blocks=need)
    assert gives == {
        "kv_heads_per_rank": page.kv_heads_per_rank,
        "kv_replication_factor": page.kv_head_copies,
        "page_bytes_per_layer": page.page_bytes,
        "bytes_per_block_all_layers": page.block_bytes,
        "num_blocks": pool.kv_blocks,
        "allocatable_blocks": pool.allocatable_blocks,
        "blocks_per_max_len_request": pool.request_blocks,
        "scheduler_max_concurrency": pool.requests_admitted,
        "max_len_requests_guaranteed": pool.requests_held,
    }


@pytest.mark.parametrize("row", VECTORS["explain"], ids=name_of)
def test_a_diagnosis_is_the_vector_s(row):
    found = neuron.explain(row["asked"]["message"], row["asked"]["policy"])
    assert {key: getattr(found, key) for key in row["gives"]} == row["gives"]
    assert found.message == row["asked"]["message"]


# What is read from the environment, row by row


@pytest.mark.parametrize("text", ["0.3", " 1 ", "1e-3", "0.0001"])
def test_a_cap_above_zero_and_up_to_one_is_taken(text):
    assert budget(env={CAP: text}).kv_gmu_budget_cap_fraction == float(text)


@pytest.mark.parametrize("text", ["0", "-0.3", "1.0001", "nan", "inf", "-inf", "", " ", "30%", "0,3", "one"])
def test_a_cap_outside_is_refused_by_name_with_its_text(text):
    with pytest.raises(Refused) as error:
        budget(env={CAP: text})
    assert CAP in str(error.value)
    assert error.value.code == "INVALID_ENV"
    if text.strip("-.0123456789") and text.strip():
        assert text in str(error.value)


@pytest.mark.parametrize("text", ["7", "nan", "30%", "", "-1"])
def test_beside_a_reserve_the_cap_is_not_even_read(text):
    b = budget(env={HEADROOM: "4", CAP: text})
    assert (b.policy, b.kv_gmu_budget_cap_fraction) == ("headroom", None)


@pytest.mark.parametrize("text", ["0", "0.0", " 0.0 ", "-0.0", "4", "1.7", "1e1", "1e290"])
def test_any_finite_reserve_from_zero_is_one(text):
    b = budget(env={HEADROOM: text, MINIMUM: "0"})
    assert (b.policy, b.headroom_bytes) == ("headroom", int(float(text) * GIB))


@pytest.mark.parametrize("text", ["-1", "-0.001", "nan", "inf", "", "4GiB", "4 GiB", "four", "4G"])
def test_no_other_reserve_is_read(text):
    with pytest.raises(Refused, match=HEADROOM) as error:
        budget(env={HEADROOM: text})
    assert error.value.code == "INVALID_ENV"
    assert "0 or more" in str(error.value)


def test_unset_and_empty_differ():
    assert budget(env={}).policy == "default"
    with pytest.raises(Refused, match=f"{HEADROOM} .* is ''"):
        budget(env={HEADROOM: ""})


@pytest.mark.parametrize(("text", "least"), [("1.0", GIB), ("0.1", 107_374_182), ("0", 0), ("-1", 0), (" 2 ", 2 * GIB)])
def test_a_minimum_of_zero_or_less_switches_the_check_off(text, least):
    assert budget(env={MINIMUM: text}).minimum_bytes == least


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "one", "1GiB"])
def test_no_other_minimum_is_read(text):
    with pytest.raises(Refused, match=MINIMUM):
        budget(env={MINIMUM: text})
    with pytest.raises(Refused, match=MINIMUM):
        budget(env={MINIMUM: text, HEADROOM: "1"})


@pytest.mark.parametrize(
    ("target", "stack"),
    [
        ("trn1", 16), ("gen2", 16), ("inf2", 16), ("trn2", 24), ("gen3", 24), ("trn3", 36), ("gen4", 36),
        (" trn2 ", 24),
    ],
)  # fmt: skip
def test_a_target_and_its_alias_have_one_static_size(target, stack):
    b = budget(env={"VLLM_NEURON_CPU_COMPILE": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": target}, weights=0)
    assert (b.route, b.hbm_stack_bytes) == ("cpu_compile", stack * GIB)


@pytest.mark.parametrize("target", ["trn9", "trn3pre", "trn3pds98", "", "TRN2", "gen1"])
def test_another_target_is_refused_with_those_that_are_known(target):
    with pytest.raises(Refused, match="NEURON_PLATFORM_TARGET_OVERRIDE") as error:
        budget(env={"VLLM_NEURON_CPU_COMPILE": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": target})
    assert error.value.code == "UNKNOWN_PLATFORM"
    assert all(name in str(error.value) for name in names("neuron"))


@pytest.mark.parametrize(("chip", "text"), [("inf2", "2"), ("trn1", "2"), ("trn2", "4"), ("trn2", "0"), ("trn3", "-1")])
def test_a_degree_that_the_chip_has_not_is_refused(chip, text):
    with pytest.raises(Refused, match="NEURON_LOGICAL_NC_CONFIG") as error:
        budget(env={"NEURON_LOGICAL_NC_CONFIG": text}, chip=chip)
    assert error.value.code == "INVALID_LNC"


@pytest.mark.parametrize("text", ["two", "", "1.0", "2 cores"])
def test_a_degree_in_words_is_refused(text):
    with pytest.raises(Refused, match="NEURON_LOGICAL_NC_CONFIG") as error:
        budget(env={"NEURON_LOGICAL_NC_CONFIG": text})
    assert error.value.code == "INVALID_LNC"


@pytest.mark.parametrize(
    ("chip", "degree", "share"),
    [("trn1", None, 16), ("inf2", 1, 16), ("trn2", None, 24), ("trn2", 1, 12), ("trn3", 2, 36), ("trn3", 1, 18)],
)
def test_the_share_of_every_platform_at_every_degree(chip, degree, share):
    assert budget(chip=chip, logical_nc_config=degree, weights=0).share_bytes == share * GIB


# Bad input that is no variable


@pytest.mark.parametrize(("used", "free"), [(-1, -1), (-1, 5), (5, 0), (5, -1), (None, 5), (5, None)])
def test_unusable_statistics_are_refused(used, free):
    with pytest.raises(Refused, match="runtime reports") as error:
        budget(runtime_bytes_used=used, runtime_bytes_free=free)
    assert error.value.code == "INVALID_RUNTIME_STATS"


@pytest.mark.parametrize(("host", "workers"), [(0, 1), (-5, 1), (3, 4), (None, 1)])
def test_a_host_without_memory_for_each_worker_is_refused(host, workers):
    with pytest.raises(Refused, match="host") as error:
        budget(cpu_mode=True, host_available_bytes=host, local_workers=workers)
    assert error.value.code == "INVALID_HOST_MEMORY"


def test_both_switches_name_both_variables():
    with pytest.raises(Refused) as error:
        budget(cpu_mode=True, cpu_compile=True)
    assert "VLLM_NEURON_CPU_MODE" in str(error.value)
    assert "VLLM_NEURON_CPU_COMPILE" in str(error.value)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.2, float("nan"), float("inf")])
def test_utilization_is_checked_only_by_the_default_policy(share):
    with pytest.raises(Refused, match="gpu_memory_utilization"):
        budget(gpu_memory_utilization=share)
    assert budget(gpu_memory_utilization=share, reserved_headroom_gib=1.0).gpu_memory_utilization == 1.0


def test_a_chip_is_named_as_the_registry_names_it():
    with pytest.raises(Refused, match="the compiler's word for trn2"):
        budget(chip="gen3")
    with pytest.raises(Refused, match="there are inf2, trn1, trn2, trn3"):
        budget(chip="trn9")
    with pytest.raises(Refused, match="weights are -1 bytes"):
        budget(weights=-1)


def test_a_utilization_of_one_is_a_double_too():
    assert budget(gpu_memory_utilization=1, weights=0, kv_gmu_budget_cap_fraction=1).kv_budget_bytes == 24 * GIB


# What a refusal says


def test_three_shapes_of_a_reserve_that_is_too_large_are_told_apart():
    whole = neuron.refusal(budget(0, reserved_headroom_gib=24.0))
    assert "all of it, whatever the model" in whole
    assert "at most 23.00 (24,696,061,952 bytes)" in whole
    together = neuron.refusal(budget(20 * GIB, reserved_headroom_gib=5.0))
    assert "which together is all of it" in together
    some = neuron.refusal(budget(20 * GIB, reserved_headroom_gib=3.5))
    assert "(536,870,912 bytes)" in some
    for says in (whole, together, some):
        assert f"{HEADROOM} " in says
        assert MINIMUM in says
        assert "gpu_memory_utilization" not in says
        assert not any(f"{word} {HEADROOM}" in says for word in ("raise", "increase", "larger"))


def test_a_largest_reserve_below_zero_and_of_zero():
    assert "no reserve works, not even 0" in neuron.refusal(
        budget(13 * GIB, reserved_headroom_gib=0.0, logical_nc_config=1)
    )
    none = budget(18_253_611_008, chip="trn3", reserved_headroom_gib=1.0, logical_nc_config=1)
    assert f"only an explicit {HEADROOM} 0 works" in neuron.refusal(none)


def test_the_default_refusal_names_what_binds_and_what_would_pass():
    cap = neuron.refusal(budget(2 * GIB, kv_gmu_budget_cap_fraction=0.03))
    assert "the cap binds" in cap
    assert "no gpu_memory_utilization up to 1" in cap
    assert f"{CAP} 0.0463 or more" in cap
    weights = neuron.refusal(budget(21_792_500_000, gpu_memory_utilization=0.8))
    assert "what the weights leave binds" in weights
    assert "gpu_memory_utilization 0.8874 or more" in weights
    both = neuron.refusal(budget(21 * GIB, gpu_memory_utilization=0.8, kv_gmu_budget_cap_fraction=0.02))
    assert "together with" in both
    assert "not even 1 and 1" in neuron.refusal(budget(24 * GIB))


@pytest.mark.parametrize(("n", "shown"), [(10_733_123_272, "9.99"), (GIB, "1.00"), (0, "0.00"), (GIB - 1, "0.99")])
def test_gib_that_may_be_typed_back_are_rounded_down(n, shown):
    assert neuron.floor_gib(n) == shown
    assert int(float(shown) * GIB) <= n


# Invariants

WEIGHTS = st.integers(0, 26 * GIB)
FRACTIONS = st.floats(0.001, 1.0)
CHIPS = st.sampled_from([("trn2", 1), ("trn2", 2), ("trn3", 1), ("trn3", 2), ("trn1", 1), ("inf2", 1)])


@settings(max_examples=200, deadline=None)
@given(weights=WEIGHTS, place=CHIPS, minimum=st.floats(0.001, 8))
def test_the_largest_reserve_is_accepted_and_one_byte_more_is_refused(weights, place, minimum):
    chip, degree = place
    d = {"chip": chip, "logical_nc_config": degree, "min_kv_budget_gib": minimum}
    largest = budget(weights, **d).maximum_headroom_bytes
    if largest < 0:
        assert not budget(weights, **d, reserved_headroom_gib=0.0).starts
        return
    assert budget(weights, **d, reserved_headroom_gib=largest / GIB).starts
    more = (largest + 1) / GIB
    assert int(more * GIB) == largest + 1
    assert not budget(weights, **d, reserved_headroom_gib=more).starts
    shown = float(neuron.floor_gib(largest))
    assert budget(weights, **d, reserved_headroom_gib=shown).starts


@settings(max_examples=200, deadline=None)
@given(weights=WEIGHTS, share=FRACTIONS, cap=FRACTIONS, minimum=st.floats(0.01, 8))
def test_the_smallest_utilization_and_cap_pass_and_nothing_below_does(weights, share, cap, minimum):
    said = {"gpu_memory_utilization": share, "kv_gmu_budget_cap_fraction": cap, "min_kv_budget_gib": minimum}
    b = budget(weights, **said)
    for found in (neuron.smallest_utilization(b), neuron.smallest_cap(b)):
        if found.value is None:
            assert not budget(weights, **{**said, found.field: 1.0}).starts
            continue
        assert budget(weights, **{**said, found.field: found.value}).starts
        assert budget(weights, **{**said, found.field: float(found.typed)}).starts
        below = nextafter(found.value, 0.0)
        if below > 0:
            assert not budget(weights, **{**said, found.field: below}).starts
    if inverse.both_settings(b) is None:
        one = {"gpu_memory_utilization": 1.0, "kv_gmu_budget_cap_fraction": 1.0}
        assert not budget(weights, **{**said, **one}).starts


@settings(max_examples=200, deadline=None)
@given(weights=WEIGHTS, share=FRACTIONS, cap=FRACTIONS)
def test_the_reserve_of_today_s_budget_keeps_it_to_the_byte(weights, share, cap):
    b = budget(weights, gpu_memory_utilization=share, kv_gmu_budget_cap_fraction=cap, min_kv_budget_gib=0.0)
    found = neuron.headroom_of_default(b)
    if found.value is None:
        assert weights > 24 * GIB
        return
    same = budget(weights, reserved_headroom_gib=float(found.typed), min_kv_budget_gib=0.0)
    assert same.kv_budget_bytes == b.kv_budget_bytes
    if found.value:
        less = budget(weights, reserved_headroom_gib=(found.value - 1) / GIB, min_kv_budget_gib=0.0)
        assert less.kv_budget_bytes == b.kv_budget_bytes + 1


@settings(max_examples=200, deadline=None)
@given(weights=WEIGHTS, share=FRACTIONS, wanted=st.integers(1, 24 * GIB), tokens=st.integers(1, 200_000))
def test_a_cap_for_bytes_or_tokens_gives_them_or_is_impossible(weights, share, wanted, tokens):
    b = budget(weights, gpu_memory_utilization=share)
    found = neuron.cap_for_bytes(b, wanted)
    most = inverse.capped(b, share, 1.0)
    if found.value is None:
        assert wanted > most
    else:
        assert inverse.capped(b, share, float(found.typed)) == wanted
    block = 1_310_720
    held = neuron.cap_for_tokens(b, tokens, block_size=32, block_bytes=block)
    if held.value is None:
        assert (most // block - 1) * 32 < tokens
    else:
        assert (inverse.capped(b, share, float(held.typed)) // block - 1) * 32 >= tokens


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, share=FRACTIONS, place=CHIPS, reserve=st.none() | st.floats(0, 30))
def test_a_device_with_the_table_s_total_and_a_compilation_agree(weights, share, place, reserve):
    chip, degree = place
    said = {"gpu_memory_utilization": share, "logical_nc_config": degree, "reserved_headroom_gib": reserve}
    on = budget(weights, chip=chip, runtime_bytes_used=3 << 20, runtime_bytes_free=_stack(chip) - (3 << 20), **said)
    off = budget(weights, cpu_compile=True, platform_target_override=chip, **said)
    assert (on.route, off.route) == ("device", "cpu_compile")
    assert on.kv_budget_bytes == off.kv_budget_bytes


def _stack(chip):
    return neuron.load_neuron_chip(chip).hbm_stack_bytes.value


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, reserve=st.integers(0, 30 * GIB), more=st.integers(0, 4 * GIB))
def test_each_byte_of_reserve_takes_one_byte_of_cache_until_nothing_is_left(weights, reserve, more):
    assume(reserve + more <= 24 * GIB)
    one = budget(weights, reserved_headroom_gib=reserve / GIB, min_kv_budget_gib=0.0).kv_budget_bytes
    other = budget(weights, reserved_headroom_gib=(reserve + more) / GIB, min_kv_budget_gib=0.0).kv_budget_bytes
    assert other == max(one - more, 0)


# Diagnosis


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("[NCC_EOOM001] out of memory", "compile_hbm"),
        ("Estimated peak HBM usage (18.25) exceeds 16GB", "compile_hbm"),
        ("nrt_load_collectives failed with NRT_RESOURCE", "load_hbm"),
        ("nrt_load: status=4", "load_hbm"),
        ("TDRV:dmem_alloc_internal Failed to allocate 1073741824 bytes", "load_hbm"),
        ("ValueError: To serve at least one request with the model's max seq len (8192)", "no_fit"),
        ("No available memory for the cache blocks.", "no_fit"),
        ("[F137] neuronx-cc was forcibly killed", "host_memory"),
        ("Killed", "host_memory"),
        ("nrt_execute status=2", "not_memory"),
        ("Connection refused", "unknown"),
    ],
)
def test_a_text_is_told_by_its_words(message, kind):
    assert failure_class(message) == kind


def test_every_refusal_of_ours_is_recognised():
    for b in (budget(22 * GIB), budget(0, reserved_headroom_gib=24.0), budget(13 * GIB, reserved_headroom_gib=20.0)):
        assert failure_class(neuron.refusal(b)) == "below_minimum"


def test_the_overshoot_is_rounded_up_to_steps():
    message = "[NCC_EOOM002] Maximum peak HBM usage of 28.44GB exceeds HBM limit of 24.00GB for Trn2."
    assert str(overshoot(message)) == "4.44"
    b = budget(9 * GIB, reserved_headroom_gib=4.0)
    found = neuron.explain(message, "headroom", b)
    said = " ".join((*found.notes, *found.procedure))
    assert "about 5 steps of 1 GiB" in said
    assert "from 4 to 5" in said
    assert "would exceed 14.00 GiB" in said
    assert "once with a smaller cache or by the default policy" in found.procedure[0]


def test_a_reserve_at_its_end_is_not_raised_any_further():
    found = neuron.explain("NRT_RESOURCE in nrt_load_util", "headroom", budget(9 * GIB, reserved_headroom_gib=13.5))
    assert not any(step.startswith("where it passes, raise") for step in found.procedure)
    assert any("another GiB would be refused" in step for step in found.procedure)


@pytest.mark.parametrize("policy", ["default", "headroom"])
def test_only_a_reserve_gets_the_procedure_as_a_note_and_the_error_stays_the_same(policy):
    error = RuntimeError('nrt_tensor_allocate status=4 message="Allocation Failure"')
    found = neuron.annotate(error, policy)
    assert found is error
    assert str(found) == 'nrt_tensor_allocate status=4 message="Allocation Failure"'
    assert len(getattr(found, "__notes__", ())) == (policy == "headroom")
    other = ValueError("something else")
    assert not hasattr(neuron.annotate(other, policy), "__notes__")


def test_below_the_minimum_the_way_is_down_or_to_the_term_that_binds():
    says = "Computed KV cache budget is below minimum threshold."
    down = neuron.explain(says, "headroom", budget(9 * GIB, reserved_headroom_gib=15.0))
    assert down.direction == "decrease"
    assert "14.00 GiB" in down.procedure[0]
    capped = neuron.explain(says, "default", budget(2 * GIB, kv_gmu_budget_cap_fraction=0.03))
    assert (capped.primary_knob, capped.direction) == (CAP, "increase")


# Hardware


@pytest.mark.parametrize(
    ("name", "stacks", "cores"),
    [
        # AWS Neuron SDK documentation, instance architecture
        ("inf2.48xlarge", 24, {1: 24}),
        ("trn1.32xlarge", 32, {1: 32}),
        ("trn2.48xlarge", 64, {1: 128, 2: 64}),
        ("Trn3 Gen2 UltraServer", 576, {1: 1152, 2: 576}),
        ("trn2.3xlarge", 4, {1: 8, 2: 4}),
    ],
)
def test_an_instance_has_its_stacks_and_logical_cores(name, stacks, cores):
    instance = neuron.load_instance(name)
    chip = neuron.load_neuron_chip(instance.platform)
    chips = instance.chips.value
    assert chip.hbm_stacks_per_chip.value * chips == stacks
    assert {n: chip.logical_cores(n, chips=chips) for n in chip.degrees} == cores


def test_every_instance_says_how_sure_it_is():
    found = {name: neuron.load_instance(name).certainty for name in names("instances")}
    assert len(found) == 15
    assert found["trn2.12xlarge"] == "inferred"
    assert found["trn3pd98.3xlarge"] == "user-reported"
    with pytest.raises(Refused, match="the closest"):
        neuron.load_instance("trn2.48xlrge")


def test_rank_sizes_are_those_that_are_supported_up_to_the_logical_cores():
    trn2, inf2 = neuron.load_neuron_chip("trn2"), neuron.load_neuron_chip("inf2")
    assert trn2.rank_sizes(2) == (1, 2, 4, 8, 16, 32, 64)
    assert trn2.rank_sizes(1, most=8) == (1, 2, 4, 8)
    assert trn2.rank_sizes(1, most=128)[-1] == 128
    assert inf2.rank_sizes(1, most=12) == (1, 2, 4, 8)
    assert neuron.load_neuron_chip("trn1").rank_sizes(1) == (1, 2, 8, 16, 32)


def test_rules_that_are_shared_with_gpus_are_still_there():
    from capplan.engines.vllm_neuron.rules import ALWAYS, NEEDS_GRAPH, NEEDS_LENGTH, NEEDS_MODEL, SHARED

    assert {rule.name for rule in SHARED} == {*ALWAYS, *NEEDS_GRAPH, *NEEDS_LENGTH, *NEEDS_MODEL}
    assert SHARED[0].name == "ranks-at-least-one"
