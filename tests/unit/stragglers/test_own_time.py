"""The statistics that tell a slow rank from noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from steptally.measure.stragglers.own_time import effect, excess_effect, medians_of_others


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 7), st.integers(1, 4)),
        elements=st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, np.nan]),
    )
)
def test_the_median_of_others_leaves_each_row_out(values):
    for row in range(len(values)):
        for column in range(values.shape[1]):
            others = np.delete(values[:, column], row)
            others = others[~np.isnan(others)]
            expected = np.median(others) if others.size else np.nan
            found = medians_of_others(values)[row, column]
            assert found == expected or (np.isnan(found) and np.isnan(expected))


@pytest.mark.parametrize(("ranks", "steps"), [(4, 6), (16, 4), (256, 10)])
def test_noise_alone_is_found_at_most_once_in_a_hundred_recordings(ranks, steps):
    # 100 recordings at one in a hundred each: five or more false alarms have a chance of 0.3 %.
    draw = np.random.default_rng([ranks, steps])
    recordings = (np.exp(draw.normal(0, 0.1, (ranks, steps))) for _ in range(100))
    assert sum(effect(ratios).found.any() for ratios in recordings) < 5


def test_the_least_effect_shrinks_with_the_steps():
    draw = np.random.default_rng(1)
    few, many = (
        float(np.median(effect(np.exp(draw.normal(0, 0.1, (8, steps)))).least)) for steps in (4, 40)
    )
    assert 1.03 < many < few


def test_a_part_may_stand_out_where_the_whole_does_not():
    # Own time varies by ±40 %, what precedes the model by ±0.1 % of it: 5 % more there are found.
    draw = np.random.default_rng(2)
    whole = np.exp(draw.normal(0, 0.4, (4, 10)))
    first = draw.normal(0, 0.001, (4, 10))
    first[2] += 0.05
    assert not effect(whole).found.any()
    assert list(np.flatnonzero(excess_effect(first).found)) == [2]
