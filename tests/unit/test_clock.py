"""Microseconds of any spelling become integer nanoseconds without losing a digit."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptally.trace.clock import NO_TIME, nanoseconds


@given(st.lists(st.integers(-(2**43) * 1000 + 1, 2**43 * 1000 - 1), min_size=1))
def test_decimals_below_two_to_the_43_are_exact_though_they_pass_through_floats(times_ns):
    written = [float(Decimal(time) / 1000) for time in times_ns]
    assert nanoseconds(written).tolist() == times_ns


def test_a_float_times_a_thousand_would_have_been_wrong():
    # In [2^52 / 1000, 2^43) a double of microseconds, scaled, can land half a nanosecond off.
    times = np.arange(4_458_676_522_690_000, 4_458_676_522_700_000)
    written = [float(f"{time // 1000}.{time % 1000:03d}") for time in times.tolist()]
    assert (nanoseconds(written) == times).all()
    assert (np.rint(np.array(written) * 1000).astype(np.int64) != times).any()


@given(st.lists(st.integers(0, 2**62 // 1000 - 1), min_size=1))
def test_whole_microseconds_are_exact_up_to_the_largest(times_us):
    assert nanoseconds(times_us).tolist() == [1000 * time for time in times_us]


@given(st.lists(st.integers(0, 2**62 - 1000), min_size=1))
def test_decimal_text_is_exact_up_to_the_largest(times_ns):
    written = [f"{time // 1000}.{time % 1000:03d}" for time in times_ns]
    assert nanoseconds(written).tolist() == times_ns


def test_integers_decimals_and_text_may_stand_in_one_file():
    mixed = [7, 7.5, "7.001", "7"]
    assert nanoseconds(mixed).tolist() == [7000, 7500, 7001, 7000]


@pytest.mark.parametrize(
    "value", [None, "", "soon", float("nan"), float("inf"), 10**30, "1e40", -(10**30)]
)
def test_what_is_no_time_is_marked_and_spoils_no_other(value):
    assert nanoseconds([value, 1]).tolist() == [NO_TIME, 1000]
