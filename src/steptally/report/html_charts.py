"""The geometry of the HTML page's charts: everything in percent of the chart's own box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steptally.report.quantity import duration, share
from steptally.report.rank_bars import (
    RankBar,
    extremes,
    present_parts,
    shown_bars,
    steps_of,
)
from steptally.report.step_points import (
    StepPoint,
    counted_points,
    losses_in_words,
    steps_in_words,
    thinned,
)

MOST_BARS = 64
MOST_POINTS = 600
# The style sheet has this many colours and hatchings for exposed groups; more take turns.
EXPOSED_LOOKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of one bar; `look` is its class in the style sheet."""

    look: str
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarLine:
    """One rank's bar, and its parts in words in the legend's order."""

    rank: int
    span: str
    compute_share: str
    segments: tuple[Segment, ...]
    durations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarsChart:
    """The stacked bars of all ranks; `legend` is (look, name, least, most) of each part."""

    note: str
    lines: tuple[BarLine, ...]
    legend: tuple[tuple[str, str, str, str], ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point of a plot; `look` is `counted`, `traced`, `warm-up`, `incomplete` or `loss`."""

    look: str
    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Points over steps; ticks are (percent, text); `looks` are those that the legend explains."""

    note: str
    marks: tuple[Mark, ...]
    joined: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    looks: tuple[str, ...] = ()


def bars_chart(bars: Sequence[RankBar]) -> BarsChart | None:
    """Bars on one scale, the longest step filling the width; None without a traced step."""
    if not bars:
        return None
    parts = present_parts(bars)
    looks = _looks([part.kind for part in parts])
    look_of = {part.name: look for part, look in zip(parts, looks, strict=True)}
    longest_ns = max(max(bar.span_ns for bar in bars), 1)
    kept = shown_bars(bars, MOST_BARS)
    return BarsChart(
        note=steps_of(bars),
        lines=tuple(_bar_line(bar, look_of, longest_ns) for bar in kept),
        legend=tuple(_legend_line(bars, part.name, look_of[part.name]) for part in parts),
        left_out=len(bars) - len(kept),
    )


def _legend_line(bars: Sequence[RankBar], name: str, look: str) -> tuple[str, str, str, str]:
    least_ns, most_ns = extremes(bars, name)
    return look, name, duration(least_ns), duration(most_ns)


def _bar_line(bar: RankBar, look_of: dict[str, str], longest_ns: int) -> BarLine:
    segments: list[Segment] = []
    start_ns = 0
    shown = [part for part in bar.parts if part.name in look_of]
    for part in shown:
        of_span = share(part.duration_ns, bar.span_ns)
        segments.append(
            Segment(
                look=look_of[part.name],
                x=_percent(start_ns, longest_ns),
                width=_percent(part.duration_ns, longest_ns),
                words=f"{part.name}: {duration(part.duration_ns)}, {of_span}",
            )
        )
        start_ns += part.duration_ns
    return BarLine(
        rank=bar.rank,
        span=duration(bar.span_ns),
        compute_share=share(bar.parts[0].duration_ns, bar.span_ns),
        segments=tuple(segments),
        durations=tuple(duration(part.duration_ns) for part in shown),
    )


def _looks(kinds: Sequence[str]) -> list[str]:
    looks, exposed = [], 0
    for kind in kinds:
        looks.append(f"exposed-{exposed % EXPOSED_LOOKS + 1}" if kind == "exposed" else kind)
        exposed += kind == "exposed"
    return looks


def steps_plot(points: Sequence[StepPoint]) -> Plot | None:
    """The slowest rank's wall of each step; what lies far outside the counted steps is cut."""
    if not points:
        return None
    walls = [point.wall_ns for point in counted_points(points)]
    walls += [point.wall_ns for point in points if point.kind == "traced"]
    low, high = with_margin(min(walls), max(walls))
    shown = thinned(points, MOST_POINTS)
    first, last = points[0].step, points[-1].step
    marks = tuple(
        Mark(
            look=point.kind,
            x=place(point.step, first, last),
            y=100 - place(point.wall_ns, low, high),
            words=f"step {point.step}, {point.kind}: {duration(point.wall_ns)} "
            f"(rank {point.slowest_rank}){_cut(point.wall_ns, low, high)}",
        )
        for point in shown
    )
    cut = any(not low <= point.wall_ns <= high for point in shown)
    return Plot(
        note=f"slowest rank's wall; {steps_in_words(points)}"
        + ("; a mark at the edge lies outside the scale" if cut else ""),
        marks=marks,
        joined="",
        x_ticks=step_ticks(first, last),
        y_ticks=tuple(
            (100 - place(tick, low, high), duration(tick)) for tick in ticks(low, high, 4)
        ),
        looks=tuple(dict.fromkeys(mark.look for mark in marks)),
    )


def loss_plot(curve: Sequence[tuple[int, float]]) -> Plot | None:
    """The loss over the steps, joined by a line; values that are not finite are left out."""
    finite = [(step, loss) for step, loss in curve if math.isfinite(loss)]
    if len(finite) < 2:
        return None
    values = [loss for _, loss in finite]
    low, high = with_margin(min(values), max(values))
    first, last = finite[0][0], finite[-1][0]
    marks = tuple(
        Mark(
            look="loss",
            x=place(step, first, last),
            y=100 - place(loss, low, high),
            words=f"step {step}: {loss:.4f}",
        )
        for step, loss in thinned(finite, MOST_POINTS)
    )
    return Plot(
        note=losses_in_words(finite),
        marks=marks,
        joined=" ".join(f"{mark.x:.2f},{mark.y:.2f}" for mark in marks),
        x_ticks=step_ticks(first, last),
        y_ticks=tuple(
            (100 - place(tick, low, high), f"{tick:.4g}") for tick in ticks(low, high, 4)
        ),
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between `low` and `high`: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 10.0, 5)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * factor for factor in (1, 2, 5, 10)), key=lambda size: abs(size - rough))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def step_ticks(first: int, last: int) -> tuple[tuple[float, str], ...]:
    """(percent, text) of the first step, the last and round ones between that have room."""
    whole = {first, last}
    gap = (last - first) / 12
    whole |= {
        round(tick)
        for tick in ticks(first, last, 5)
        if tick == round(tick) and first + gap < tick < last - gap
    }
    return tuple((place(step, first, last), f"{step:,}") for step in sorted(whole))


def with_margin(low: float, high: float) -> tuple[float, float]:
    """A range a little wider, and never empty."""
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def _cut(value: float, low: float, high: float) -> str:
    return "" if low <= value <= high else ", outside the scale"


def place(value: float, low: float, high: float) -> float:
    """Percent of the way from `low` to `high`, cut to the box; the middle where they are equal."""
    if high <= low:
        return 50.0
    return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 3)


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 3)
