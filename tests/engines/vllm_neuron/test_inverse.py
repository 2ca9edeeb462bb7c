"""Answers backwards: caps, utilizations and reserves that give what was asked."""

from math import nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engines import vllm_neuron as neuron
from capplan.engines.release import load_engine
from capplan.engines.vllm_neuron import inverse
from capplan.settings import environment
from capplan.settings.deployment import Deployment
from capplan.units import GIB

ENGINE = load_engine("vllm-neuron")


HEADROOM, CAP, MINIMUM = (
    "VLLM_NEURON_RESERVED_HEADROOM_GIB",
    "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION",
    "VLLM_NEURON_MIN_KV_BUDGET_GIB",
)


def budget(weights=8 * GIB, env=None, **said):
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **said, **environment.settings(env or {})})
    return neuron.worker_budget(d, ENGINE, weights_bytes=weights)


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
