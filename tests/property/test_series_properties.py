"""Iteration times: noise gives no verdict at the stated level; what is inserted is found."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steptally.measure.stragglers.series import IterationSeries, conclude_from_series
from steptally.measure.stragglers.series_statistics import LEVEL, change_point, find_period

SEEDS = st.integers(0, 2**31)


def series(values):
    return IterationSeries(
        source="log",
        iterations=tuple(range(1, len(values) + 1)),
        ms=tuple(float(value) for value in values),
    )


def noise(count, seed, scale):
    return 500.0 * np.exp(scale * np.random.default_rng(seed).standard_normal(count))


@settings(max_examples=100, derandomize=True, deadline=None)
@given(count=st.integers(1, 400), seed=SEEDS, scale=st.floats(0.0, 0.04))
def test_noise_of_a_few_percent_gives_no_verdict(count, seed, scale):
    assert conclude_from_series(series(noise(count, seed, scale))).verdicts == ()


def test_noise_of_any_size_gives_a_verdict_no_more_often_than_its_level_says():
    # Three kinds of verdict, each at 1 %: 400 series give 12 on average by the bound, and 25 or
    # more with probability 0.0006 at that bound (binomial).
    generator = np.random.default_rng(7)
    alarms = sum(
        bool(conclude_from_series(series(noise(120, generator, 0.25))).verdicts) for _ in range(400)
    )
    assert alarms <= 24


def test_heavy_tails_change_no_level_more_often_than_stated():
    # Ranks alone enter: 600 series of Cauchy noise at 1 % give 6 on average, over 16 with 0.0002.
    generator = np.random.default_rng(11)
    found = sum(change_point(generator.standard_cauchy(100)) is not None for _ in range(600))
    assert found <= 16


def test_random_places_have_a_period_no_more_often_than_stated():
    generator = np.random.default_rng(5)
    found = 0
    for _ in range(1000):
        count = int(generator.integers(3, 12))
        places = np.sort(generator.choice(400, size=count, replace=False))
        found += find_period(places, 400) is not None
    assert found <= 2.5 * LEVEL * 1000


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    period=st.integers(5, 60),
    first=st.integers(0, 59),
    size=st.floats(1.0, 30.0),
    seed=SEEDS,
    scale=st.floats(0.001, 0.05),
)
def test_an_inserted_period_is_found(period, first, size, seed, scale):
    values = noise(10 * period, seed, scale)
    values[first % period :: period] *= 1 + size
    found = conclude_from_series(series(values))
    assert [row.verdict for row in found.verdicts] == ["pause"]
    assert f"every {period} iterations" in found.verdicts[0].evidence[0]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(at=st.floats(0.2, 0.8), factor=st.floats(1.25, 4.0), seed=SEEDS)
def test_an_inserted_change_of_level_is_found_within_a_few_points(at, factor, seed):
    values = noise(200, seed, 0.03)
    place = int(200 * at)
    values[place:] *= factor
    (row,) = conclude_from_series(series(values)).verdicts
    assert row.verdict == "not-identifiable"
    told = int(row.evidence[0].split("From iteration ")[1].split()[0])
    assert abs(told - (place + 1)) <= 3


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    values=st.lists(st.floats(1e-3, 1e9, allow_nan=False), min_size=0, max_size=60),
)
def test_any_series_is_answered(values):
    found = conclude_from_series(series(values))
    assert found.notes or found.verdicts
