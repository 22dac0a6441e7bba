"""Pauses at a fixed period, as the exact rank sum tells them."""

from itertools import combinations

import numpy as np
import pytest

from steptally.measure.stragglers.periods import _ways, find_period


@pytest.mark.parametrize("chosen", range(1, 6))
@pytest.mark.parametrize("others", range(1, 6))
def test_the_orders_of_a_rank_sum_are_those_counted_one_by_one(chosen, others):
    counted = [0] * (chosen * others + 1)
    for places in combinations(range(chosen + others), chosen):
        counted[sum(places) - chosen * (chosen - 1) // 2] += 1
    assert list(_ways(chosen, others)) == counted


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_period_is_found_in_noise_as_large_as_the_pause(length):
    draw = np.random.default_rng(length)
    values = draw.exponential(1.0, 30)
    values[1::length] += 4.0
    assert find_period(values, range(30)).length == length


def test_noise_has_a_period_once_in_a_hundred_recordings():
    # 500 rows at one in a hundred: more than twelve have a chance of 0.2 %.
    draw = np.random.default_rng(0)
    found = sum(find_period(draw.normal(size=20), range(20)) is not None for _ in range(500))
    assert found <= 12
