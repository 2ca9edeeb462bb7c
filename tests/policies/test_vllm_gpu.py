"""The policy against what engines printed while they started."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.policies.vllm_gpu import kv_budget_bytes, outside_bytes, requested_bytes
from capplan.units import GIB, show_bytes


def gib(*printed: float) -> int:
    """Printed GiB, added and taken as bytes."""
    return round(sum(printed) * GIB)


@pytest.mark.parametrize(
    ("total", "share", "claimed"),
    [
        (95.01, 0.9, "85.51 GiB"),  # start-up record vl-069, vllm 0.27 on RTX PRO 6000
        (44.42, 0.9, "39.98 GiB"),  # start-up record vl-068, vllm 0.10.2 on L40S
        (23.53, 0.8, "18.82 GiB"),  # start-up record vl-089, vllm 0.10.2 on a 24 GB card
        (139.72, 0.9, "125.75 GiB"),  # vllm-project/vllm issue 23192, the refusal to start on an H200
    ],
)
def test_the_engine_claims_a_share_of_all_the_memory(total, share, claimed):
    assert show_bytes(requested_bytes(device_bytes=gib(total), gpu_memory_utilization=share)) == claimed


@pytest.mark.parametrize(
    ("total", "share", "held", "left"),
    [
        # weights, peak, non-torch as printed, and the cache that the engine then had
        (79.22, 0.9, (14.96, 1.26, 1.79), "53.29 GiB"),  # start-up record vl-002, Llama-3-8B on H100
        (23.58, 0.9, (14.9888, 2.07, 0.35), "3.81 GiB"),  # start-up record vl-004, Llama-3.1-8B on RTX 3090
        (23.58, 0.9, (14.9888, 2.99, 0.35), "2.89 GiB"),  # start-up record vl-005, the same with 29,000 tokens
        (79.18, 0.9, (1.12, 5.56, 0.13), "64.45 GiB"),  # start-up record vl-061, Qwen3-0.6B on H100
        (79.18, 0.9, (61.03, 5.64, 0.14), "4.45 GiB"),  # start-up record vl-062, Qwen3-32B on H100
        (44.42, 0.9, (27.72, 1.40, 0.21), "10.65 GiB"),  # start-up record vl-068, Qwen3-235B on L40S
        (23.53, 0.8, (8.80, 1.40, 0.02), "8.60 GiB"),  # start-up record vl-089, Qwen3-8B-FP8
    ],
)
def test_the_cache_gets_what_the_claim_leaves(total, share, held, left):
    requested = requested_bytes(device_bytes=gib(total), gpu_memory_utilization=share)
    assert show_bytes(kv_budget_bytes(requested=requested, fixed=gib(*held))) == left


def test_the_budget_is_never_negative():
    assert [kv_budget_bytes(requested=100, fixed=fixed) for fixed in (99, 100, 101)] == [1, 0, 0]


def test_what_is_outside_stands_beside_the_claim():
    # start-up record vl-069: 95.01 GiB on the card, a budget of 85.51
    assert show_bytes(outside_bytes(device_bytes=gib(95.01), claimed=gib(85.51))) == "9.50 GiB"


def test_claiming_more_than_there_is_leaves_a_negative_rest():
    assert [outside_bytes(device_bytes=100, claimed=claimed) for claimed in (99, 100, 101)] == [1, 0, -1]


@given(device=st.integers(1, 2**40), share=st.floats(0, 1, exclude_min=True, allow_subnormal=False))
def test_the_claim_is_the_ceiling_of_one_float_product_and_within_the_device(device, share):
    claimed = requested_bytes(device_bytes=device, gpu_memory_utilization=share)
    assert claimed == math.ceil(device * share)
    assert 0 < claimed <= device


@given(device=st.integers(1, 2**40), percent=st.integers(1, 100), fixed=st.integers(0, 2**40))
def test_cache_fixed_and_outside_sum_to_the_device_where_something_is_left(device, percent, fixed):
    requested = requested_bytes(device_bytes=device, gpu_memory_utilization=percent / 100)
    cache = kv_budget_bytes(requested=requested, fixed=fixed)
    assert (cache == 0) == (fixed >= requested)
    if cache:
        assert cache + fixed + outside_bytes(device_bytes=device, claimed=requested) == device
