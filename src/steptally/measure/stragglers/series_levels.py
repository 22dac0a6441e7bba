"""Growth and changes of level in a series of iteration times, pauses left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from steptally.measure.stragglers.conclusions import WARN_SHARE, Conclusions, impact_word, percent
from steptally.measure.stragglers.series_statistics import (
    Floats,
    Indices,
    Segment,
    segments,
    sigma,
    trend,
)
from steptally.tally.straggler_rows import VerdictRow

# Kolmogorov's 1 % point over the rank walk's slope for a shift in the middle of normal noise:
# a shift of 6.66 sigma / sqrt(n) is found half of the time.
SHIFT_FACTOR = 6.66
# Few points make a trend only where they grow by half, and lie on a line within a tenth of that.
FEW_GROWTH = 0.5
FEW_RESIDUAL = 0.1
FEWEST_FOR_TREND = 3
NOT_ONE_RANK = "Iteration times are those of all ranks together, and do not tell of any one rank."


def conclude_from_levels(
    source: str,
    places: Sequence[int],
    values: Floats,
    iterations: Sequence[int],
    kept: Indices,
) -> Conclusions:
    """Growth, a step change or slow phases, whichever fits best; none below 10 % of the step.

    `places` are the iterations run up to each value, `iterations[kept[i]]` the number it has.
    """
    parts = segments(values)
    noise = sigma(values - _levels(parts, values))
    middle = float(np.median(values))
    shift = SHIFT_FACTOR * noise / math.sqrt(len(values)) / middle
    detectable = 1 + max(WARN_SHARE, shift)
    if len(parts) == 1:
        note = f"no lasting change in {source}: its level is {middle:.1f} ms."
        return Conclusions(notes=(note,), detectable=detectable)
    start, slope = trend(places, values)
    line = start + slope * np.asarray(places)
    off_line = float(np.abs(values - line).sum())
    off_levels = float(np.abs(values - _levels(parts, values)).sum())
    numbers = [iterations[at] for at in kept]
    if slope > 0 and off_line <= 1.1 * off_levels:
        return _growth(source, numbers, places, line, slope, detectable)
    return _changes(source, numbers, parts, detectable)


def growth_of_few(
    source: str, iterations: Sequence[int], values: Floats, fewest: int
) -> Conclusions:
    """What less than `fewest` points can still tell: growth on a straight line, by half or more."""
    note = (
        f"{source} has {len(values)} iteration times: pauses and changes need {fewest}; growth of "
        f"{FEW_GROWTH:.0%} or more on a straight line would show.".replace("% or", " % or")
    )
    if len(values) < FEWEST_FOR_TREND or not (np.diff(values) > 0).all():
        return Conclusions(notes=(note,))
    start, slope = trend(iterations, values)
    line = start + slope * np.asarray(iterations, dtype=np.float64)
    rise = float(line[-1] - line[0])
    off = float(np.abs(values - line).max())
    if rise < FEW_GROWTH * values[0] or off > FEW_RESIDUAL * rise:
        return Conclusions(notes=(note,))
    return _growth(source, iterations, iterations, values, slope, 1 + FEW_GROWTH)


def _growth(
    source: str,
    iterations: Sequence[int],
    places: Sequence[int],
    line: Floats,
    slope: float,
    detectable: float,
) -> Conclusions:
    first, last = float(line[0]), float(line[-1])
    share = (last - first) / first if first > 0 else 0.0
    facts = (
        f"{source} grows on a straight line from {first:.1f} ms at iteration {iterations[0]} to "
        f"{last:.1f} ms at iteration {iterations[-1]}: {slope:.3g} ms per iteration, "
        f"{percent(share)} over {places[-1] - places[0]} iterations"
    )
    if share < WARN_SHARE:
        note = f"{facts}, {impact_word(share)}."
        return Conclusions(notes=(note,), detectable=detectable)
    row = VerdictRow(
        verdict="not-identifiable",
        factor=last / first,
        detectable=detectable,
        evidence=(
            f"{facts}.",
            (
                f"{NOT_ONE_RANK} Growth of all ranks is a leak (host memory, a cache, a list "
                "that grows), not a straggler."
            ),
            (
                "Next: look at host memory and at allocated GPU memory over iterations; restart "
                "from a checkpoint, and see whether the time falls back."
            ),
        ),
    )
    return Conclusions(verdicts=(row,), detectable=detectable)


def _changes(
    source: str, iterations: Sequence[int], parts: Sequence[Segment], detectable: float
) -> Conclusions:
    base = min(part.level for part in parts)
    slow = [part for part in parts if part.level >= (1 + WARN_SHARE) * base]
    highest = max(part.level for part in parts)
    if not slow:
        note = (
            f"the level of {source} changes {len(parts) - 1} times, from {base:.1f} to "
            f"{highest:.1f} ms at most: {impact_word(highest / base - 1)}."
        )
        return Conclusions(notes=(note,), detectable=detectable)
    spans = [
        f"iterations {iterations[part.start]} to {iterations[part.stop - 1]} take "
        f"{part.level:.1f} ms ({part.level / base:.2f}x)"
        for part in slow[:5]
    ]
    more = f", and {len(slow) - 5} more phases" if len(slow) > 5 else ""
    kind = _kind(parts, iterations)
    row = VerdictRow(
        verdict="not-identifiable",
        factor=highest / base,
        detectable=detectable,
        evidence=(
            f"{kind}: {'; '.join(spans)}{more}, against {base:.1f} ms otherwise.",
            (
                f"{NOT_ONE_RANK} What changes for all at once is shared: the network (another "
                "job, adaptive routing off, mixed NICs), storage, power or cooling."
            ),
            (
                "Next: compare `nccl-tests` in a good and a bad phase; give NIC counters and GPU "
                "logs of the time, or traces of all ranks of a slow iteration."
            ),
        ),
    )
    return Conclusions(verdicts=(row,), detectable=detectable)


def _kind(parts: Sequence[Segment], iterations: Sequence[int]) -> str:
    if len(parts) > 2:
        return "The level changes in phases"
    before, after = parts
    word = "slower" if after.level > before.level else "faster"
    return f"From iteration {iterations[after.start]} on every iteration is {word}"


def _levels(parts: Sequence[Segment], values: Floats) -> Floats:
    levels = np.empty(len(values))
    for part in parts:
        levels[part.start : part.stop] = part.level
    return levels
