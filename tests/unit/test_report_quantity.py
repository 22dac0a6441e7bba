"""Values are written in human units, and an exact integer keeps its digits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptally.report.quantity import duration, exact, printable, quantity, ranges


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (41_000_000_000_000_000_000, "FLOP", "4.100e19 FLOP"),  # over 2**63, as a 405B step is
        (999_999, "FLOP", "999,999 FLOP"),
        (18_288_592.5, "FLOP/token", "1.829e7 FLOP/token"),
        (136_200_000_000.0, "FLOP/s", "136.2 GFLOP/s"),
        (1024, "byte", "1.000 KiB"),
        (1023, "byte", "1,023 B"),
        (12_300_000_000, "byte/s", "12.30 GB/s"),
        (0.5144, "1", "51.4 %"),
        (1.2345, "s", "1.234 s"),
        (0.00033, "s", "330.0 µs"),
        (4096, "token", "4,096 tokens"),
        (1, "token", "1 token"),
        (6950.61, "token/s", "6,951 tokens/s"),
        (True, "true or false", "yes"),
        (None, "1", "not known"),
        ("adam", "", "adam"),
        (math.nan, "1", "nan (not a finite number)"),
        (7_241_732_096, "parameter", "7,241,732,096 parameters"),
    ],
)
def test_a_value_is_written_in_the_unit_that_people_read(value, unit, words):
    assert quantity(value, unit) == words


def test_an_integer_that_is_rounded_is_given_exactly_too():
    assert exact(2**70, "FLOP") == "1,180,591,620,717,411,303,424 FLOP"
    assert exact(912_261_120, "byte") == "912,261,120 bytes"
    assert exact(4096, "token") is None
    assert exact(0.5, "1") is None


def test_an_integer_beyond_the_range_of_floats_is_still_written():
    assert quantity(10**400, "FLOP") == "1.000e400 FLOP"
    assert quantity(10**400, "byte") == "1.000e400 byte"
    assert quantity(10**400, "s") == "1.000e400 s"


@pytest.mark.parametrize("unit", ["FLOP", "byte", "s", "1", "token/s", "byte/s", "FLOP/s", "x"])
@given(value=st.integers() | st.floats(allow_nan=True, allow_infinity=True))
def test_every_number_can_be_written_in_every_unit(unit, value):
    assert quantity(value, unit)


@given(numbers=st.sets(st.integers(min_value=0, max_value=60), min_size=1))
def test_ranges_name_exactly_the_numbers_given(numbers):
    named = set()
    for part in ranges(numbers).split(", "):
        low, _, high = part.partition("–")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == numbers


def test_a_negative_duration_keeps_its_sign():
    assert duration(-1_500_000) == "-1.500 ms"


def test_signs_that_move_the_cursor_or_the_reading_direction_are_replaced():
    assert printable("a\x1b[31mb\u202ec\ud800") == "a�[31mb�c�"
