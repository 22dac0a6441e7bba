"""A number's first place is found alike by a table and by sorting."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from steptally.trace.first_places import NOWHERE, first_places

# Close together, as a run's correlations are, and so far apart that no table can hold them.
NUMBERS = st.lists(st.none() | st.integers(0, 9) | st.integers(10**12, 10**12 + 3), max_size=20)


@given(numbers=NUMBERS, wanted=NUMBERS)
def test_the_first_place_of_a_number_is_that_of_a_search_from_the_front(numbers, wanted):
    expected = [
        numbers.index(number) if number is not None and number in numbers else NOWHERE
        for number in wanted
    ]
    found = first_places(pl.Series(numbers, dtype=pl.Int64), pl.Series(wanted, dtype=pl.Int64))
    assert found.tolist() == expected
