"""What the iteration lines of a log say together: restarts, warm-up, ramp-up, median and spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from steptally.measure.log import LogLine

# A line at the head of a start that takes this much longer than the later ones is warm-up.
WARMUP_EXCESS = 1.15
# Logged throughput is proportional to the iteration where the quotient varies by less than this.
PROPORTIONAL = 0.1
FEWEST_FOR_TREND = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeries:
    """The lines of a log, sorted by what they are good for.

    `steady` are the lines that a throughput may rest on; the others are set apart, each line once:
    `warmup` (head of each start), `skipped` (an optimizer step left out, or a NaN), `rampup` (a
    smaller batch than the last). `starts` counts starts of the job, `repeated` the iterations that
    a restart ran again. `interval` is the usual number of iterations that a line stands for;
    `steady_iterations` and its like add up what the lines of each sort really stand for.
    """

    steady: tuple[LogLine, ...]
    warmup: tuple[LogLine, ...]
    skipped: tuple[LogLine, ...]
    rampup: tuple[LogLine, ...]
    starts: int
    repeated: int
    interval: int
    steady_iterations: int
    warmup_iterations: int
    rampup_iterations: int
    everything_set_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, quartiles and extremes of a sample."""

    median: float
    low_quartile: float
    high_quartile: float
    lowest: float
    highest: float
    count: int


def sort_lines(lines: Sequence[LogLine], warmup_iterations: int | None = None) -> LogSeries:
    """Set warm-up, skipped steps and batch ramp-up apart.

    `warmup_iterations` states how many iterations of each start are warm-up; by default it is the
    first line of each, and those after it that take 15 % longer than the median of the rest. Where
    nothing steady is left, all lines are taken and `everything_set_apart` says so.
    """
    starts = split_starts(lines)
    interval = log_interval(starts)
    warm = [line for start in starts for line in _warmup(start, warmup_iterations)]
    left = _without(lines, warm)
    skipped = [line for line in left if line.skipped or line.nan]
    left = _without(left, skipped)
    last_batch = left[-1].global_batch_size if left else None
    rampup = [line for line in left if line.global_batch_size != last_batch]
    steady = _without(left, rampup) or list(lines)
    behind = {
        id(line): count
        for start in starts
        for line, count in zip(start, iterations_behind(start), strict=True)
    }
    return LogSeries(
        steady=tuple(steady),
        warmup=tuple(warm),
        skipped=tuple(skipped),
        rampup=tuple(rampup),
        starts=len(starts),
        repeated=_repeated_iterations(starts),
        interval=interval,
        steady_iterations=sum(behind[id(line)] for line in steady),
        warmup_iterations=sum(behind[id(line)] for line in warm),
        rampup_iterations=sum(behind[id(line)] for line in rampup),
        everything_set_apart=len(left) == len(rampup),
    )


def split_starts(lines: Sequence[LogLine]) -> list[list[LogLine]]:
    """The lines of each start of the job: where the iteration number does not grow, one begins."""
    starts: list[list[LogLine]] = []
    for line in lines:
        if not starts or line.iteration <= starts[-1][-1].iteration:
            starts.append([])
        starts[-1].append(line)
    return starts


def log_interval(starts: Sequence[Sequence[LogLine]]) -> int:
    """Iterations between two lines: the most usual distance; 1 where every start has one line."""
    distances = [
        later.iteration - earlier.iteration
        for start in starts
        for earlier, later in pairwise(start)
    ]
    return statistics.mode(distances) if distances else 1


def iterations_behind(start: Sequence[LogLine]) -> list[int]:
    """How many iterations each line of one start stands for: its distance to the line before.

    The first stands for as many as the second, but no more than its own number: Megatron-LM also
    prints the very first iteration alone.
    """
    distances = [later.iteration - earlier.iteration for earlier, later in pairwise(start)]
    first = min(distances[0], start[0].iteration) if distances else 1
    return [max(1, first), *distances]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    >>> spread([1.0, 2.0, 3.0]).median
    2.0
    """
    ordered = sorted(values)
    low, _, high = (
        statistics.quantiles(ordered, n=4, method="inclusive")
        if len(ordered) > 1
        else (ordered[0],) * 3
    )
    return Spread(
        median=statistics.median(ordered),
        low_quartile=low,
        high_quartile=high,
        lowest=ordered[0],
        highest=ordered[-1],
        count=len(ordered),
    )


def throughput_accumulates(lines: Sequence[LogLine]) -> bool:
    """Whether logged TFLOP/s grow in proportion to the iteration while the step time does not.

    That is FLOPs of all iterations over the time of one (NVIDIA/Megatron-LM#1755, mended by #2128).
    """
    logged = [line for line in lines if line.tflops_per_device]
    if len(logged) < FEWEST_FOR_TREND:
        return False
    first, last = logged[0], logged[-1]
    if not first.tflops_per_device or (last.tflops_per_device or 0) < 2 * first.tflops_per_device:
        return False
    offset = first.iteration - _iterations_behind(logged)
    quotients = [
        (line.tflops_per_device or 0) * line.duration_ms / max(1, line.iteration - offset)
        for line in logged
    ]
    middle = statistics.median(quotients)
    return all(abs(quotient / middle - 1) < PROPORTIONAL for quotient in quotients)


def _iterations_behind(logged: Sequence[LogLine]) -> int:
    """Iterations that the first logged figure must hold for growth to be proportional."""
    first, last = logged[0], logged[-1]
    growth = (last.tflops_per_device or 0) * last.duration_ms
    start = (first.tflops_per_device or 0) * first.duration_ms
    per_iteration = (growth - start) / (last.iteration - first.iteration)
    return round(start / per_iteration) if per_iteration > 0 else 0


def _warmup(start: Sequence[LogLine], warmup_iterations: int | None) -> list[LogLine]:
    if warmup_iterations is not None:
        end = start[0].iteration + warmup_iterations
        return [line for line in start if line.iteration < end]
    head = 1 if len(start) > 1 else 0
    while head < len(start) - 1:
        later = statistics.median(line.duration_ms for line in start[head + 1 :])
        if start[head].duration_ms <= WARMUP_EXCESS * later:
            break
        if start[head].global_batch_size != start[head + 1].global_batch_size:
            break
        head += 1
    return list(start[:head])


def _without(lines: Sequence[LogLine], others: Sequence[LogLine]) -> list[LogLine]:
    numbers = {id(line) for line in others}
    return [line for line in lines if id(line) not in numbers]


def _repeated_iterations(starts: Sequence[Sequence[LogLine]]) -> int:
    furthest, repeated = 0, 0
    for start in starts:
        if furthest >= start[0].iteration:
            repeated += min(furthest, start[-1].iteration) - start[0].iteration + 1
        furthest = max(furthest, start[-1].iteration)
    return repeated
