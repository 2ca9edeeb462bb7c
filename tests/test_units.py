"""The few operations: the same for one configuration and for many."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.units import (
    GIB,
    KIB,
    MIB,
    at_least,
    at_most,
    both,
    ceil_div,
    ceil_share,
    choose,
    either,
    every,
    is_array,
    negate,
    ratio,
    round_up,
    show_bytes,
    some,
    whole_product,
)

COUNTS = st.integers(0, 2**40)
POSITIVE = st.integers(1, 2**20)
SHARES = st.floats(0, 1, exclude_min=True, allow_subnormal=False)


def many(*values):
    return np.array(values, dtype=np.int64)


def test_ceil_div_steps_one_above_a_multiple():
    assert [ceil_div(n, 16) for n in (0, 1, 15, 16, 17)] == [0, 1, 1, 1, 2]


def test_round_up_leaves_a_multiple_as_it_is():
    assert [round_up(n, 64) for n in (0, 63, 64, 65)] == [0, 64, 64, 128]


def test_at_least_and_at_most_meet_at_the_bound():
    assert [at_least(n, 5) for n in (4, 5, 6)] == [5, 5, 6]
    assert [at_most(n, 5) for n in (4, 5, 6)] == [4, 5, 5]


def test_ints_are_exact_beyond_64_bits():
    assert ceil_div(10**30 + 1, 10) == 10**29 + 1
    assert at_least(10**30, 1) == 10**30
    assert round_up(2**70 + 1, 2**70) == 2**71


@given(n=COUNTS, d=POSITIVE)
def test_ceil_div_is_the_smallest_whole_number_that_covers(n, d):
    q = ceil_div(n, d)
    assert q * d >= n > (q - 1) * d


@given(n=COUNTS, step=POSITIVE)
def test_round_up_is_the_next_multiple(n, step):
    assert round_up(n, step) % step == 0
    assert n <= round_up(n, step) < n + step


@given(n=COUNTS, share=SHARES)
def test_ceil_share_is_the_ceiling_of_the_float_product(n, share):
    # vllm 0.33.0, v1/worker/utils.py, request_memory: one float64 product, then math.ceil
    assert ceil_share(n, share) == math.ceil(n * share)


@pytest.mark.parametrize(("n", "share", "above"), [(10, 0.7, 7), (100, 0.07, 8), (3, 1.0, 3), (3, 0.34, 2)])
def test_ceil_share_keeps_the_float_product_as_it_is(n, share, above):
    # 100 * 0.07 is 7.000000000000001 in float64
    assert ceil_share(n, share) == above


@given(share=st.floats(0, 1e6, allow_subnormal=False), n=st.integers(0, 2**30))
def test_whole_product_truncates_the_float_product(share, n):
    assert whole_product(share, n) == int(share * n)


@given(pairs=st.lists(st.tuples(COUNTS, POSITIVE), min_size=1, max_size=5))
def test_an_operation_on_arrays_is_the_operation_on_each(pairs):
    n, d = many(*(p[0] for p in pairs)), many(*(p[1] for p in pairs))
    for operation in (ceil_div, round_up, at_least, at_most, ratio):
        assert operation(n, d).tolist() == [operation(*pair) for pair in pairs], operation.__name__
        assert operation(n, 7).tolist() == [operation(a, 7) for a, _ in pairs], operation.__name__


@given(pairs=st.lists(st.tuples(COUNTS, SHARES), min_size=1, max_size=5))
def test_a_share_of_arrays_is_the_share_of_each(pairs):
    n, share = many(*(p[0] for p in pairs)), np.array([p[1] for p in pairs])
    assert ceil_share(n, share).tolist() == [ceil_share(*pair) for pair in pairs]
    assert ceil_share(n, share).dtype == np.int64
    assert whole_product(share, n).tolist() == [whole_product(b, a) for a, b in pairs]
    assert ceil_share(1000, share).tolist() == [ceil_share(1000, b) for _, b in pairs]


def test_an_array_against_an_int_is_compared_place_by_place():
    assert at_least(many(1, 9), 5).tolist() == [5, 9]
    assert at_most(5, many(1, 9)).tolist() == [1, 5]


def test_only_what_has_places_is_an_array():
    assert is_array(many(1, 2))
    assert not any(map(is_array, (1, 1.5, True, None, [1, 2], np.int64(1), np.float64(0.5))))


def test_ratio_is_one_float64_division():
    assert ratio(19_073, 8192) == 2.3282470703125


def test_flags_hold_for_one_and_for_many():
    flags = np.array([True, False])
    assert (every(True), some(True), every(flags), some(flags), some(~flags & flags)) == (
        True,
        True,
        False,
        True,
        False,
    )
    assert both(flags, True).tolist() == [True, False]
    assert either(flags, True).tolist() == [True, True]
    assert negate(flags).tolist() == [False, True]
    assert (both(True, False), either(True, False), negate(True), negate(False)) == (False, True, False, True)
    assert negate(np.bool_(True)) == np.False_


def test_choose_takes_the_one_or_the_other_place_by_place():
    assert (choose(True, 1, 2), choose(False, 1, 2)) == (1, 2)
    assert choose(np.array([True, False]), many(1, 2), 9).tolist() == [1, 9]


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0.00 GiB"), (GIB, "1.00 GiB"), (3 * GIB // 2, "1.50 GiB"), (66_571_993_088, "62.00 GiB")]
)
def test_bytes_are_shown_in_gib_with_two_decimals(n, text):
    assert show_bytes(n) == text


def test_units_are_binary():
    assert (KIB, MIB, GIB) == (2**10, 2**20, 2**30)
