"""Robust statistics of a series of step times: local level, outliers, periods, change points.

Everything rests on medians, median absolute deviations and ranks, so that a few pauses do not hide
themselves. Levels of significance hold for noise that is exchangeable; step times that drift on
their own are not, which is why every verdict also needs an effect that matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LEVEL = 0.01  # of a false alarm, for each kind of verdict over a whole series
TO_SIGMA = 1.4826
LOCAL_WINDOW = 31  # points of the running median
FEWEST_PERIODS = 3
FILLED = 0.8  # of the slots of a period that must hold an outlier, and of outliers in slots
SHORTEST_SEGMENT = 5
KOLMOGOROV_TERMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Outliers at a fixed distance: every `points`-th point from `first` on, within `tolerance`.

    `hits` outliers lie on it, of `slots` places between the first and the last. `chance` is
    the probability that so many would by accident, over all periods that were tried.
    """

    points: int
    first: int
    tolerance: int
    hits: int
    slots: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Points `start` to `stop` (exclusive) of one level."""

    start: int
    stop: int
    level: float


def sigma(values: Floats) -> float:
    """Standard deviation as the median absolute deviation tells it, for normal noise.

    >>> round(sigma(np.array([1.0, 2.0, 3.0, 4.0, 100.0])), 4)
    1.4826
    """
    return TO_SIGMA * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def local_level(values: Floats) -> Floats:
    """The running median over `LOCAL_WINDOW` points (a third of the series where it is short)."""
    window = max(3, min(LOCAL_WINDOW, len(values) // 3) | 1)
    if len(values) <= window:
        return np.full(len(values), np.median(values))
    padded = np.pad(values, window // 2, mode="reflect")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1))


def outlier_bound(residuals: Floats) -> float:
    """The least residual that noise would reach once in a series with probability `LEVEL`."""
    return NormalDist().inv_cdf(1 - LEVEL / max(2, len(residuals))) * sigma(residuals)


def find_period(outliers: Indices, count: int) -> Period | None:
    """The period that the positions of outliers among `count` points have, if they have one.

    Candidates come from the distances between outliers; a tolerance of 2 % of the period is tried
    beside none. Under chance, the outliers on the places of a grid are hypergeometric; the bound
    counts every grid of so many places among `count` points.
    """
    if len(outliers) < FEWEST_PERIODS:
        return None
    best: Period | None = None
    for points in sorted(set(np.diff(outliers).tolist())):
        for tolerance in sorted({0, round(0.02 * points)}):
            if points < 2 * (2 * tolerance + 1):
                continue
            found = _on_grid(outliers, count, points, tolerance)
            if found is not None and (best is None or found.chance < best.chance):
                best = found
    return best if best is not None and best.chance <= LEVEL else None


def _on_grid(outliers: Indices, count: int, points: int, tolerance: int) -> Period | None:
    """The best phase of one period, None where too few slots or outliers are on it."""
    phases = outliers % points
    counts = np.bincount(phases, minlength=points)
    near = sum(np.roll(counts, shift) for shift in range(-tolerance, tolerance + 1))
    first = int(np.argmax(near))
    away = (outliers - first) % points
    on = np.minimum(away, points - away) <= tolerance
    turns = np.unique(np.rint((outliers[on] - first) / points))
    filled = len(turns)
    expected = int(turns[-1] - turns[0]) + 1
    hits = int(on.sum())
    if filled < max(FEWEST_PERIODS, FILLED * expected) or hits < FILLED * len(outliers):
        return None
    places = expected * (2 * tolerance + 1)
    grids = count * count / (2 * (expected - 1))
    chance = min(1.0, grids * _hypergeometric_tail(count, places, len(outliers), hits))
    return Period(
        points=points, first=first, tolerance=tolerance, hits=hits, slots=expected, chance=chance
    )


def _hypergeometric_tail(count: int, marked: int, drawn: int, hits: int) -> float:
    """P(at least `hits` of `drawn` points are marked), where `marked` of `count` are."""
    marked = min(marked, count)
    return math.fsum(
        math.exp(
            _log_choose(marked, k)
            + _log_choose(count - marked, drawn - k)
            - _log_choose(count, drawn)
        )
        for k in range(hits, min(marked, drawn) + 1)
        if drawn - k <= count - marked
    )


def _log_choose(of: int, many: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(many + 1) - math.lgamma(of - many + 1)


def segments(values: Floats) -> list[Segment]:
    """Levels of a series, by binary segmentation with a rank test at each split.

    >>> [s.level for s in segments(np.array([1.0] * 20 + [2.0] * 20))]
    [1.0, 2.0]
    """
    bounds = sorted(_splits(values, 0, len(values)))
    edges = [0, *bounds, len(values)]
    for at in range(1, len(edges) - 1):  # a split made among three levels is a little off
        edges[at] = edges[at - 1] + _best_split(values[edges[at - 1] : edges[at + 1]])[0]
    return [
        Segment(start=start, stop=stop, level=float(np.median(values[start:stop])))
        for start, stop in pairwise(edges)
    ]


def _splits(values: Floats, start: int, stop: int) -> list[int]:
    found, open_parts = [], [(start, stop)]
    while open_parts:
        low, high = open_parts.pop()
        at = change_point(values[low:high])
        if at is not None:
            found.append(low + at)
            open_parts += [(low, low + at), (low + at, high)]
    return found


def change_point(values: Floats) -> int | None:
    """Where the level of a series changes most, None where chance explains it.

    The cumulative sum of centred ranks, over its scale, has Kolmogorov's distribution under
    exchangeable noise, whatever its shape.
    """
    if len(values) < 2 * SHORTEST_SEGMENT:
        return None
    at, statistic = _best_split(values)
    return at if kolmogorov_tail(statistic) <= LEVEL else None


def _best_split(values: Floats) -> tuple[int, float]:
    """The least-squares split of the ranks, and the largest sum of centred ranks over its scale.

    That sum itself is largest too near the middle; over both lengths it is the least squares.
    """
    count = len(values)
    walk = np.cumsum(_ranks(values) - (count + 1) / 2)
    scale = math.sqrt(count) * math.sqrt((count * count - 1) / 12)
    before = np.arange(SHORTEST_SEGMENT, count - SHORTEST_SEGMENT + 1)
    inner = np.abs(walk[before - 1])
    at = int(before[np.argmax(inner / np.sqrt(before * (count - before)))])
    return at, float(inner.max()) / scale


def kolmogorov_tail(statistic: float) -> float:
    """P(Kolmogorov's statistic is larger); 1.628 is the 1 % point.

    >>> round(kolmogorov_tail(1.628), 3)
    0.01
    """
    if statistic < 0.3:
        return 1.0
    terms = range(1, KOLMOGOROV_TERMS)
    return min(
        1.0, 2 * math.fsum((-1) ** (k - 1) * math.exp(-2 * (k * statistic) ** 2) for k in terms)
    )


def _ranks(values: Floats) -> Floats:
    """Mid-ranks from 1: equal values share theirs."""
    order = np.argsort(values, kind="stable")
    _, inverse, counts = np.unique(values[order], return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = np.empty(len(values))
    ranks[order] = (last - (counts - 1) / 2)[inverse]
    return ranks


def trend(places: Sequence[float], values: Floats) -> tuple[float, float]:
    """Intercept and slope by Theil and Sen: the median of slopes; on a sample of a long series."""
    x = np.asarray(places, dtype=np.float64)
    if len(x) > 400:
        kept = np.linspace(0, len(x) - 1, 400).astype(np.int64)
        x, values = x[kept], values[kept]
    rows, columns = np.triu_indices(len(x), k=1)
    slopes = (values[columns] - values[rows]) / (x[columns] - x[rows])
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return float(np.median(values - slope * x)), slope
