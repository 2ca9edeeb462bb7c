"""The budget's arithmetic against worked vectors, to the byte, and at the edges of each division and product."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.policies import vllm_neuron as policy
from capplan.units import GIB

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "neuron-vectors.json").read_text())
STEPS = [row for row in VECTORS["budget"] if row["steps"]]
DEFAULT = [row for row in STEPS if "user_budget_bytes" in row["steps"]]
RESERVE = [row for row in STEPS if "headroom_bytes" in row["steps"]]
SIZES = st.integers(0, 40 * GIB)
SHARES = st.floats(0.0, 1.0, exclude_min=True, allow_subnormal=False)


def name_of(row):
    return row["id"]


@pytest.mark.parametrize("row", [row for row in STEPS if "hbm_stack_bytes" in row["steps"]], ids=name_of)
def test_a_share_is_a_whole_part_of_a_stack(row):
    steps = row["steps"]
    share = policy.share_bytes(
        hbm_stack_bytes=steps["hbm_stack_bytes"], logical_cores_per_hbm_stack=steps["logical_cores_per_hbm_stack"]
    )
    assert share == steps["share_bytes"]


@pytest.mark.parametrize("row", [row for row in STEPS if "host_available_bytes" in row["asked"]], ids=name_of)
def test_workers_of_a_host_share_what_it_has_left(row):
    asked = row["asked"]
    share = policy.worker_share_bytes(
        host_available_bytes=asked["host_available_bytes"], local_workers=asked["local_workers"]
    )
    assert share == row["steps"]["share_bytes"]


@pytest.mark.parametrize("row", [row for row in STEPS if "total_budget_bytes" in row["steps"]], ids=name_of)
def test_two_products_are_truncated_one_after_the_other(row):
    steps = row["steps"]
    cap = float(row["asked"]["env"].get("VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION", 0.3))
    total = policy.total_budget_bytes(
        share=steps["share_bytes"], gpu_memory_utilization=row["asked"]["gpu_memory_utilization"]
    )
    assert total == steps["total_budget_bytes"]
    found = policy.heuristic_cap_bytes(total_budget=total, kv_gmu_budget_cap_fraction=cap)
    assert found == steps["heuristic_cap_bytes"]


@pytest.mark.parametrize("row", DEFAULT, ids=name_of)
def test_the_smaller_of_what_weights_leave_and_what_the_cap_allows_is_the_cache(row):
    steps, weights = row["steps"], row["asked"]["model_weight_bytes"]
    user = policy.user_budget_bytes(total_budget=steps["total_budget_bytes"], weights_bytes=weights)
    assert user == steps["user_budget_bytes"]
    found = policy.capped_budget_bytes(user_budget=user, heuristic_cap=steps["heuristic_cap_bytes"])
    assert found == steps["computed_available_bytes"]


@pytest.mark.parametrize("row", RESERVE, ids=name_of)
def test_a_reserve_leaves_what_it_and_the_weights_do_not_take(row):
    steps = row["steps"]
    weights = row["asked"].get("model_weight_bytes", 0) if "hbm_stack_bytes" in steps else 0
    share, text = steps["share_bytes"], row["asked"]["env"]["VLLM_NEURON_RESERVED_HEADROOM_GIB"]
    headroom = policy.setting_bytes(gib=float(text))
    assert headroom == steps["headroom_bytes"]
    found = policy.reserved_budget_bytes(share=share, weights_bytes=weights, headroom_bytes=headroom)
    assert found == steps["computed_available_bytes"]
    largest = policy.maximum_headroom_bytes(share=share, weights_bytes=weights, minimum=steps["minimum_bytes"])
    assert largest == steps["maximum_headroom_bytes"]


@pytest.mark.parametrize("row", VECTORS["headroom"], ids=name_of)
def test_the_largest_reserve_is_what_share_weights_and_minimum_leave(row):
    asked = row["asked"]
    share = policy.share_bytes(
        hbm_stack_bytes=asked["hbm_stack_bytes"], logical_cores_per_hbm_stack=asked["logical_cores_per_hbm_stack"]
    )
    largest = policy.maximum_headroom_bytes(
        share=share, weights_bytes=asked["model_weight_bytes"], minimum=asked["minimum_bytes"]
    )
    assert largest == row["gives"]["maximum_headroom_bytes"]


@pytest.mark.parametrize("gib", [0.0, 0.1, 1.0, 1.7, 4.0])
def test_gib_are_truncated_to_whole_bytes(gib):
    # the specification's own figures: 1.7 GiB is 1825361100 bytes, 0.1 GiB is 107374182
    known = {0.0: 0, 0.1: 107_374_182, 1.0: GIB, 1.7: 1_825_361_100, 4.0: 4 * GIB}
    assert policy.setting_bytes(gib=gib) == known[gib]
    assert policy.minimum_bytes(min_kv_budget_gib=gib) == known[gib]
    assert policy.minimum_bytes(min_kv_budget_gib=-gib) == 0


@given(share=SIZES, weights=SIZES, reserve=st.floats(0, 40), minimum=SIZES)
def test_a_larger_reserve_never_gives_more_and_the_largest_gives_the_minimum(share, weights, reserve, minimum):
    headroom = policy.setting_bytes(gib=reserve)
    found = policy.reserved_budget_bytes(share=share, weights_bytes=weights, headroom_bytes=headroom)
    more = policy.reserved_budget_bytes(share=share, weights_bytes=weights, headroom_bytes=headroom + 1)
    assert max(share - weights - headroom, 0) == found >= more >= max(found - 1, 0)
    largest = policy.maximum_headroom_bytes(share=share, weights_bytes=weights, minimum=minimum)
    if largest >= 0:
        left = policy.reserved_budget_bytes(share=share, weights_bytes=weights, headroom_bytes=largest)
        assert left == minimum


@given(share=SIZES, weights=SIZES, utilization=SHARES, cap=SHARES)
def test_the_default_budget_is_never_below_zero_nor_above_its_terms(share, weights, utilization, cap):
    total = policy.total_budget_bytes(share=share, gpu_memory_utilization=utilization)
    user = policy.user_budget_bytes(total_budget=total, weights_bytes=weights)
    most = policy.heuristic_cap_bytes(total_budget=total, kv_gmu_budget_cap_fraction=cap)
    found = policy.capped_budget_bytes(user_budget=user, heuristic_cap=most)
    assert found == max(min(user, most), 0)
    assert 0 <= found <= total <= share


def test_many_reserves_are_one_repeated():
    many = np.linspace(0, 30, 7)
    headroom = policy.setting_bytes(gib=many)
    found = policy.reserved_budget_bytes(share=24 * GIB, weights_bytes=8 * GIB, headroom_bytes=headroom)
    assert found.dtype == np.int64
    ones = [
        policy.reserved_budget_bytes(
            share=24 * GIB, weights_bytes=8 * GIB, headroom_bytes=policy.setting_bytes(gib=gib.item())
        )
        for gib in many
    ]
    assert found.tolist() == ones
