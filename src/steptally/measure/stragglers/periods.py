"""Whether a rank's longest steps come at a fixed period, as exactly as ranks of values tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
import numpy.typing as npt

from steptally.measure.stragglers.own_time import FALSE_ALARMS, Floats

Booleans = npt.NDArray[np.bool_]

# Steps of one phase of a period that a finding rests on at least.
FEWEST_TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Every `length`-th step (`chosen`) is among the longest; `chance` is that of luck."""

    length: int
    chosen: Booleans
    chance: float


def find_period(values: Floats, steps: Sequence[int], looked_at: int = 1) -> Period | None:
    """The period whose steps stand out most, or None.

    Wilcoxon's rank sum of the steps of one phase against all others, exact, over all periods and
    phases; `looked_at` rows of values share the allowed false alarms.

    >>> steps = range(20)
    >>> values = np.array([9.0 + step if step % 4 == 1 else step / 100 for step in steps])
    >>> find_period(values, steps).length
    4
    """
    numbers = np.array(steps)
    place = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    best, tests = None, 0
    for length, chosen in _phases(numbers):
        tests += 1
        count = int(chosen.sum())
        least = count * (count - 1) // 2
        chance = _chance(len(values), count, int(place[chosen].sum()) - least)
        if best is None or chance < best.chance:
            best = Period(length=length, chosen=chosen, chance=chance)
    if best is None or best.chance * tests * looked_at > FALSE_ALARMS:
        return None
    return best


def _phases(steps: npt.NDArray[np.int64]) -> Iterator[tuple[int, Booleans]]:
    """Each period from 2 on, and each of its phases with enough steps."""
    for length in range(2, len(steps) // FEWEST_TURNS + 1):
        for phase in range(length):
            chosen = steps % length == phase
            if chosen.sum() >= FEWEST_TURNS:
                yield length, chosen


def _chance(count: int, chosen: int, excess: int) -> float:
    """The chance that `chosen` of `count` values in order have a rank sum of `excess` or more over
    the least: Mann and Whitney's U, exact."""
    ways = _ways(chosen, count - chosen)
    return sum(ways[excess:]) / comb(count, chosen)


@cache
def _ways(chosen: int, others: int) -> tuple[int, ...]:
    """In how many orders U takes each value: the coefficients of a Gaussian binomial.

    >>> _ways(2, 2)
    (1, 1, 2, 1, 1)
    """
    ways = [1] + [0] * (chosen * others)
    for number in range(1, chosen + 1):
        top = others + number
        for at in range(len(ways) - 1, top - 1, -1):
            ways[at] -= ways[at - top]
        for at in range(number, len(ways)):
            ways[at] += ways[at - number]
    return tuple(ways)
