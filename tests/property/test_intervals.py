"""Interval arithmetic agrees with a bitmap that holds one bit for each nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steptally.trace.intervals import clip, intersect, merge, subtract, total, unite

LENGTH = 60

pairs = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)), max_size=12)


def bitmap(intervals):
    bits = np.zeros(LENGTH, dtype=bool)
    for start, end in intervals:
        bits[start:end] = True
    return bits


def interval_set(intervals):
    return merge([start for start, _ in intervals], [end for _, end in intervals])


def assert_is(intervals, bits):
    assert (bitmap(intervals) == bits).all()
    assert total(intervals) == bits.sum()
    starts, ends = intervals[:, 0], intervals[:, 1]
    assert (ends > starts).all(), "an interval of a set is never empty"
    assert (starts[1:] > ends[:-1]).all(), "intervals of a set neither touch nor overlap"


@given(pairs)
def test_merge_is_the_union_in_normal_form(intervals):
    assert_is(interval_set(intervals), bitmap(intervals))


@given(pairs, pairs)
def test_intersection_holds_what_is_in_both(left, right):
    assert_is(intersect(interval_set(left), interval_set(right)), bitmap(left) & bitmap(right))


@given(pairs, pairs)
def test_subtraction_holds_what_is_only_in_the_first(left, right):
    assert_is(subtract(interval_set(left), interval_set(right)), bitmap(left) & ~bitmap(right))


@given(pairs, pairs, pairs)
def test_unite_holds_what_is_in_any(first, second, third):
    sets = [interval_set(intervals) for intervals in (first, second, third)]
    assert_is(unite(*sets), bitmap(first) | bitmap(second) | bitmap(third))


@given(pairs, st.integers(0, LENGTH), st.integers(0, LENGTH))
def test_clip_is_the_intersection_with_a_window(intervals, start, end):
    inside = np.zeros(LENGTH, dtype=bool)
    inside[start:end] = True
    assert_is(clip(interval_set(intervals), start, end), bitmap(intervals) & inside)


@given(pairs, pairs)
def test_the_parts_of_a_set_add_up_to_it(left, right):
    whole, other = interval_set(left), interval_set(right)
    assert total(intersect(whole, other)) + total(subtract(whole, other)) == total(whole)


def test_times_beyond_what_a_float_can_hold_stay_exact():
    unix_ns = 1_790_857_026_000_000_001
    assert total(merge([unix_ns], [unix_ns + 1])) == 1
