"""The walls of a run's steps: which of them count, and what they come to.

A step's wall is its slowest rank's. Warm-up steps and traced steps are kept apart: the step time
rests on the others alone, and what tracing costs is the ratio of both. A step that not every rank
finished (the last ones of a killed run) has no wall.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any

import msgspec

from steptally.tally import Figure, MemoryRow, StepRow
from steptally.tally.ranges import number_ranges

Positive = Annotated[int, msgspec.Meta(gt=0)]


class StepLine(msgspec.Struct):
    """One line of steps.jsonl: one step as one rank saw it."""

    step: Positive
    rank: Annotated[int, msgspec.Meta(ge=0)]
    duration_ns: Positive
    tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    traced: bool = False
    warmup: bool = False
    loss: float | None = None
    grad_norm: float | None = None
    peak_memory_bytes: int | None = None
    not_finite: list[str] = []

    def row(self) -> StepRow:
        """The line as a row of the tally."""
        return StepRow(
            step=self.step,
            rank=self.rank,
            duration_ns=self.duration_ns,
            tokens=self.tokens,
            traced=self.traced,
            warmup=self.warmup,
            loss=self.loss,
            grad_norm=self.grad_norm,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A run's steps, sorted by how they may be used; each wall is in ns, by step number.

    `incomplete` are steps that only some of the `world_size` ranks finished, with those ranks.
    """

    lines: Sequence[StepLine]
    world_size: int
    counted: Mapping[int, int]
    traced: Mapping[int, int]
    warmup: Mapping[int, int]
    incomplete: Mapping[int, Sequence[int]]
    unreadable: int


def read_steps(records: Iterable[Any], world_size: int) -> Steps:
    """Sort the records of steps.jsonl; those that make no sense are counted as unreadable.

    Where a rank recorded a step twice (a run directory used again), the later record counts.
    """
    latest: dict[tuple[int, int], StepLine] = {}
    unreadable = 0
    for record in records:
        try:
            line = msgspec.convert(record, StepLine)
        except msgspec.ValidationError:
            unreadable += 1
            continue
        if line.rank >= world_size:
            unreadable += 1
            continue
        latest[line.step, line.rank] = line
    by_step: dict[int, list[StepLine]] = defaultdict(list)
    for _, line in sorted(latest.items()):
        by_step[line.step].append(line)
    walls: dict[str, dict[int, int]] = defaultdict(dict)
    incomplete = {}
    for step, ranks in by_step.items():
        if len(ranks) < world_size:
            incomplete[step] = [line.rank for line in ranks]
        else:
            walls[_use(ranks)][step] = max(line.duration_ns for line in ranks)
    return Steps(
        lines=[line for ranks in by_step.values() for line in ranks],
        world_size=world_size,
        counted=walls["counted"],
        traced=walls["traced"],
        warmup=walls["warmup"],
        incomplete=incomplete,
        unreadable=unreadable,
    )


def _use(ranks: Sequence[StepLine]) -> str:
    if any(line.warmup for line in ranks):
        return "warmup"
    return "traced" if any(line.traced for line in ranks) else "counted"


def step_figures(steps: Steps, memory_convention: str = "") -> dict[str, Figure]:
    """Step time with its range, tokens per step and second, the cost of tracing, loss, memory.

    `memory_convention` says what the recorder's peak is of. What the steps do not tell is left out,
    and `step_refusals` says why.
    """
    figures: dict[str, Figure] = {}
    walls = sorted(steps.counted.values())
    if walls:
        origin = f"the slowest rank's wall, {_which(steps.counted, 'untraced')} after warm-up"
        middle_s = median(walls) / 1e9
        figures["step_time_s"] = _measured(middle_s, "s", f"median of {origin}")
        figures["step_time_min_s"] = _measured(walls[0] / 1e9, "s", f"least of {origin}")
        figures["step_time_max_s"] = _measured(walls[-1] / 1e9, "s", f"most of {origin}")
        figures |= _token_figures(steps, middle_s)
        if steps.traced:
            figures["tracing_cost"] = _measured(
                median(steps.traced.values()) / 1e9 / middle_s,
                "× an untraced step",
                f"median wall of {_which(steps.traced, 'traced')} / step_time_s",
            )
    return figures | _loss_figures(steps) | _memory_figure(steps, memory_convention)


def step_refusals(steps: Steps) -> list[str]:
    """What the steps do not tell, and how to supply it."""
    if not steps.counted:
        complete = len(steps.traced) + len(steps.warmup)
        why = (
            f"step_time_s, tokens_per_s, tracing_cost: of {complete} steps that all ranks finished "
            "none is both untraced and after warm-up; run more steps, or trace fewer"
        )
        return [why]
    tokens = _tokens(steps)
    if len(tokens) == 1 and None not in tokens:
        return []
    told = sorted(number for number in tokens if number is not None)
    found = f"from {told[0]:,} to {told[-1]:,}" if told else "an unknown number of"
    return [
        f"tokens_per_step, tokens_per_s: the counted steps have {found} tokens; "
        + ("measure runs of equal steps" if told else "give steptally.Recorder tokens_per_step")
    ]


def step_warnings(steps: Steps) -> list[str]:
    """What is odd about the steps."""
    warnings = []
    if steps.incomplete:
        ranks = sorted({rank for there in steps.incomplete.values() for rank in there})
        warnings.append(
            f"{_which(steps.incomplete, 'unfinished')} left out: of {steps.world_size} ranks "
            f"recorded only {number_ranges(ranks)}"
        )
    if steps.unreadable:
        one = steps.unreadable == 1
        what = (
            "1 line of steps.jsonl is no step record"
            if one
            else (f"{steps.unreadable} lines of steps.jsonl are no step records")
        )
        warnings.append(f"{what}: left out")
    not_finite = {line.step for line in steps.lines if line.not_finite}
    if not_finite:
        warnings.append(
            f"loss or gradient norm is not a finite number in step {number_ranges(not_finite)}"
        )
    return warnings


def memory_rows(steps: Steps, kind: str) -> list[MemoryRow]:
    """The highest peak that each rank reported; `kind` says of what."""
    return [
        MemoryRow(rank=rank, lifetime="whole run", name=kind, bytes=peak)
        for rank, peak in sorted(_peaks(steps).items())
    ]


def _token_figures(steps: Steps, step_time_s: float) -> dict[str, Figure]:
    tokens = _tokens(steps)
    value = next(iter(tokens)) if len(tokens) == 1 else None
    if value is None:
        return {}
    rate = value / step_time_s
    return {
        "tokens_per_step": _measured(value, "token", "steps.jsonl, over all ranks"),
        "tokens_per_s": _measured(rate, "token/s", "tokens_per_step / step_time_s"),
        "tokens_per_s_per_device": _measured(
            rate / steps.world_size, "token/s", f"tokens_per_s / {steps.world_size} ranks"
        ),
    }


def _loss_figures(steps: Steps) -> dict[str, Figure]:
    losses = {line.step: line.loss for line in steps.lines if line.loss is not None}
    if not losses:
        return {}
    first, last = min(losses), max(losses)
    return {
        "loss_first": _measured(losses[first], "", f"step {first}"),
        "loss_last": _measured(losses[last], "", f"step {last}"),
    }


def _memory_figure(steps: Steps, convention: str) -> dict[str, Figure]:
    peaks = _peaks(steps)
    if not peaks:
        return {}
    rank = max(peaks, key=lambda rank: peaks[rank])
    origin = f"rank {rank} of {len(peaks)} that reported"
    figure = _measured(peaks[rank], "byte", origin)
    return {"peak_memory_bytes_max": replace(figure, convention=convention)}


def _peaks(steps: Steps) -> dict[int, int]:
    peaks: dict[int, int] = {}
    for line in steps.lines:
        if line.peak_memory_bytes is not None:
            peaks[line.rank] = max(peaks.get(line.rank, 0), line.peak_memory_bytes)
    return peaks


def _tokens(steps: Steps) -> set[int | None]:
    return {line.tokens for line in steps.lines if line.step in steps.counted}


def _measured(value: float, unit: str, origin: str) -> Figure:
    return Figure(value=value, unit=unit, basis="measured", origin=origin)


def _which(steps: Iterable[int], what: str) -> str:
    """`2 traced steps (6–7)`."""
    numbers = sorted(steps)
    return f"{len(numbers)} {what} step{'s' * (len(numbers) != 1)} ({number_ranges(numbers)})"
