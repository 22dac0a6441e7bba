"""Sets of time as sorted, disjoint, half-open integer intervals [start, end).

Every share of a step's time is built from these four: merge, intersect, subtract, total. An
interval set is an int64 array of shape (n, 2), sorted, with gaps between its rows; all work is
vectorised, in O(n log n). Times are integer nanoseconds, so that sums are exact.

>>> compute = merge([0, 50], [40, 90])
>>> communication = merge([30], [60])
>>> total(subtract(communication, compute))
10
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def merge(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """The union of any intervals, in any order; empty ones (end ≤ start) add nothing."""
    start = np.asarray(starts, dtype=np.int64)
    end = np.asarray(ends, dtype=np.int64)
    real = end > start
    start, end = start[real], end[real]
    if start.size == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():  # a device's work comes by start
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [start.size - 1]))
    return np.stack((start[first], reach[last]), axis=1)


def unite(*sets: Intervals) -> Intervals:
    """The union of interval sets."""
    together = np.concatenate((EMPTY, *sets))
    return merge(together[:, 0], together[:, 1])


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """The times that are in both sets."""
    return _where_covered(left, right, 1, 1)


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """The times that are in `left` and not in `right`."""
    return _where_covered(left, right, 1, 0)


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The part of a set inside the window [start, end)."""
    clipped = np.clip(intervals, start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def total(intervals: Intervals) -> int:
    """The summed length, in the unit of the ends."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def covered_before(intervals: Intervals, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How much of a set lies before each time, which may have any shape.

    >>> covered_before(merge([0, 20], [10, 30]), np.array([5, 15, 25, 40])).tolist()
    [5, 10, 15, 20]
    """
    if not len(intervals):
        return np.zeros_like(times)
    starts, lengths = intervals[:, 0], intervals[:, 1] - intervals[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    number = np.searchsorted(starts, times, side="right")
    last = np.maximum(number - 1, 0)
    inside = np.clip(times - starts[last], 0, lengths[last])
    return np.where(number > 0, before[last] + inside, 0)


def _where_covered(left: Intervals, right: Intervals, in_left: int, in_right: int) -> Intervals:
    """The stretches between neighbouring edges that `left` and `right` cover as asked (1 or 0)."""
    edges = np.concatenate((left.ravel(), right.ravel()))
    # Both are sorted, and so is what a stable sort merges them to; an edge of both stands twice.
    order = np.argsort(edges, kind="stable")
    edges, is_of_left = edges[order], order < left.size
    passed = np.cumsum(is_of_left)
    # Inside a set, the number of its edges so far is odd; nothing is covered after the last edge.
    wanted = (passed & 1 == in_left) & (np.arange(1, edges.size + 1) - passed & 1 == in_right)
    return merge(edges[:-1][wanted[:-1]], edges[1:][wanted[:-1]])
