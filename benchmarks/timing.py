"""Timings that can be believed: a warm-up, several runs, median with fastest and slowest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured quantity; `low` and `high` are its extremes over `count` runs."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    count: int


def rate(
    name: str, unit: str, work: float, function: Callable[[], object], runs: int = 5
) -> Result:
    """`work` units a call, as units per second over `runs` timed calls after one warm-up."""
    return _result(name, unit, [work / seconds for seconds in timings(function, runs)])


def duration(name: str, function: Callable[[], object], runs: int = 5) -> Result:
    """Seconds a call, over `runs` timed calls after one warm-up."""
    return _result(name, "s", timings(function, runs))


def timings(function: Callable[[], object], runs: int) -> list[float]:
    function()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def _result(name: str, unit: str, values: list[float]) -> Result:
    return Result(
        name=name,
        unit=unit,
        median=statistics.median(values),
        low=min(values),
        high=max(values),
        count=len(values),
    )
