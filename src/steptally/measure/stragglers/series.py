"""Verdicts from iteration times alone: pauses at a fixed period, growth, changes of level.

Iteration times are those of the slowest rank: every rank waits for it. They tell when time is
lost, never on which rank, so all but a periodic pause is `not-identifiable`, with what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from steptally.measure.log import LogLine
from steptally.measure.log_series import WARMUP_EXCESS, log_interval, split_starts
from steptally.measure.steps import Steps
from steptally.measure.stragglers.conclusions import (
    PAUSE_SHARE,
    WARN_SHARE,
    Conclusions,
    impact_word,
    percent,
)
from steptally.measure.stragglers.series_levels import conclude_from_levels, growth_of_few
from steptally.measure.stragglers.series_statistics import (
    Floats,
    Indices,
    Period,
    find_period,
    local_level,
    outlier_bound,
)
from steptally.tally.straggler_rows import VerdictRow

FEWEST_POINTS = 15  # below, no change of level can reach the level of significance
SMALLEST_PAUSE = 0.05  # of the local level


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSeries:
    """Times of iterations in order: `ms[i]` per iteration, up to and with `iterations[i]`.

    `interval` is how many iterations a point stands for (a log's `--log-interval`).
    """

    source: str
    iterations: tuple[int, ...]
    ms: tuple[float, ...]
    interval: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What the job does at fixed intervals of iterations, as far as it is known."""

    save_interval: int | None = None
    eval_interval: int | None = None
    manual_gc_interval: int | None = None


def series_of_log(lines: Sequence[LogLine], source: str) -> IterationSeries:
    """The series of a log's iteration lines.

    Left out are the first line of each start where it is warm-up (15 % over the next ones), and
    lines of a smaller batch (ramp-up). A restart's lines follow those before it.
    """
    starts = split_starts(lines)
    batch = lines[-1].global_batch_size if lines else None
    kept: list[LogLine] = []
    for start in starts:
        following = sorted(line.duration_ms for line in start[1:6])
        warm = following and start[0].duration_ms > WARMUP_EXCESS * following[len(following) // 2]
        kept += [line for line in start[bool(warm) :] if line.global_batch_size == batch]
    return IterationSeries(
        source=source,
        iterations=tuple(line.iteration for line in kept),
        ms=tuple(line.duration_ms for line in kept),
        interval=log_interval(starts),
    )


def series_of_steps(steps: Steps, source: str) -> IterationSeries:
    """The series of a run directory's steps: walls without warm-up and traced ones."""
    walls = sorted(steps.counted.items())
    return IterationSeries(
        source=source,
        iterations=tuple(step for step, _ in walls),
        ms=tuple(wall / 1e6 for _, wall in walls),
    )


def conclude_from_series(series: IterationSeries, schedule: Schedule | None = None) -> Conclusions:
    """What a series of iteration times tells; the notes state the least effect it could show.

    >>> ms = tuple(float(v) for v in [100, 101] * 100)
    >>> conclude_from_series(IterationSeries(source="log", iterations=tuple(range(200)), ms=ms))
    ... # doctest: +ELLIPSIS
    Conclusions(verdicts=(), ...
    """
    values = np.asarray(series.ms, dtype=np.float64)
    if len(values) < FEWEST_POINTS:
        return growth_of_few(series.source, series.iterations, values, FEWEST_POINTS)
    level = local_level(values)
    residuals = values / level - 1
    bound = max(SMALLEST_PAUSE, outlier_bound(residuals))
    outliers = np.flatnonzero(residuals > bound)
    pauses = _pauses(series, values, level, outliers, schedule or Schedule())
    kept = np.delete(np.arange(len(values)), outliers)
    levels = conclude_from_levels(
        series.source, [_run(series)[at] for at in kept], values[kept], series.iterations, kept
    )
    noise = (
        f"{len(values)} points{_mean_of(series.interval)}: a single pause of {percent(bound)} or "
        "more of a point could be told from noise"
    )
    return Conclusions(
        verdicts=(*pauses.verdicts, *levels.verdicts),
        notes=(
            *pauses.notes,
            *levels.notes,
            f"{noise}, and a lasting change from {percent((levels.detectable or 1) - 1)} on.",
        ),
        detectable=levels.detectable,
    )


def _mean_of(interval: int) -> str:
    return f" (each the mean of {interval} iterations)" if interval > 1 else ""


def _run(series: IterationSeries) -> list[int]:
    """Iterations that were run up to each point: a restart's repeated ones count again."""
    done = [0]
    for before, after in pairwise(series.iterations):
        done.append(done[-1] + (after - before if after > before else series.interval))
    return done


def _pauses(
    series: IterationSeries,
    values: Floats,
    level: Floats,
    outliers: Indices,
    schedule: Schedule,
) -> Conclusions:
    """Points far over their neighbours: at a fixed period, or not."""
    if not len(outliers):
        return Conclusions(notes=(f"no pauses in {series.source}.",))
    excess = values[outliers] - level[outliers]
    share = float(excess.sum() / values.sum())
    places = np.asarray(_run(series), dtype=np.int64) // series.interval
    period = find_period(places[outliers], int(places[-1]) + 1)
    times = (
        f"{len(outliers)} of {len(values)} points take {float(np.median(values[outliers])):.1f} ms "
        f"where their neighbours take {float(np.median(level[outliers])):.1f} ms"
    )
    lost = f"{percent(share)} of the time"
    if period is None:
        facts = f"{times}: {lost}, at no fixed period (iterations {_few(series, outliers)})"
        if share < WARN_SHARE:
            return Conclusions(notes=(f"{facts}.",))
        evidence = (f"{facts}: {impact_word(share)}.", "Which rank pauses, the log does not tell.")
        row = VerdictRow(verdict="not-identifiable", evidence=evidence)
        return Conclusions(verdicts=(row,))
    facts = f"{times}: {lost}, {_every(period, series.interval)}"
    if share < PAUSE_SHARE:
        return Conclusions(notes=(f"{facts}, which is less than {percent(PAUSE_SHARE)}.",))
    row = VerdictRow(
        verdict="pause",
        factor=float(np.median(values[outliers] / level[outliers])),
        evidence=(f"{facts}.", *_why(period.points * series.interval, schedule)),
    )
    return Conclusions(verdicts=(row,))


def _every(period: Period, interval: int) -> str:
    about = "about " if period.tolerance else ""
    return (
        f"{about}every {period.points * interval} iterations ({period.hits} on {period.slots} "
        f"places of that period; chance {period.chance:.1g})"
    )


def _why(iterations: int, schedule: Schedule) -> list[str]:
    """What has that period: what the job states, else the usual suspects."""
    known = {
        "checkpoints": ("--save-interval", schedule.save_interval),
        "evaluation": ("--eval-interval", schedule.eval_interval),
        "garbage collection": ("--manual-gc-interval", schedule.manual_gc_interval),
    }
    for what, (flag, interval) in known.items():
        if interval and iterations == interval:
            return [f"The job's {flag} is {interval}: these are its {what}."]
    return [
        (
            "Python's garbage collection on single ranks is the usual cause (all the others wait), "
            "else checkpoints or evaluation."
        ),
        (
            "Next: `--manual-gc --manual-gc-interval 100` collects on all ranks at once; compare "
            "`--save-interval` and `--eval-interval` with the period."
        ),
    ]


def _few(series: IterationSeries, outliers: Indices) -> str:
    shown = [str(series.iterations[at]) for at in outliers[:5]]
    return ", ".join(shown) + (", …" if len(outliers) > len(shown) else "")
