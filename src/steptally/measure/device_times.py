"""Where a device's time went: over a whole recording, in each step, and in what is left of steps.

The shares are those of `overlap.time_row`; this module says which of the device's work is in which
row. No work is in two steps, and what is in none is shown as partial, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from steptally.measure.overlap import device_row, device_step_rows
from steptally.measure.step_finding import FoundSteps
from steptally.tally import TimeRow

WHOLE_RECORDING = 0
BEFORE_FIRST = "before the first recorded step"
AFTER_LAST = "after the last recorded step"
BETWEEN = "between recorded steps"
_NEEDED = ("kind", "group", "collective", "start_ns", "end_ns", "step", "before")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTimes:
    """One rank's rows: the whole recording (step 0), its whole steps, and parts of steps."""

    recording: TimeRow | None = None
    steps: tuple[TimeRow, ...] = ()
    partial: tuple[TimeRow, ...] = ()


def device_times(work: pl.DataFrame, found: FoundSteps, rank: int) -> RecordedTimes:
    """The rows of a device from its work (`device_work.with_steps`)."""
    needed = work.select(_NEEDED)
    recording = device_row(needed, rank=rank, step=WHOLE_RECORDING)
    if found.windows.is_empty():
        return RecordedTimes(recording=recording)
    return RecordedTimes(
        recording=recording,
        steps=tuple(device_step_rows(needed, found.windows["step"].to_list(), rank=rank)),
        partial=tuple(_partial(needed.filter(pl.col("step").is_null()), found, rank)),
    )


def _partial(outside: pl.DataFrame, found: FoundSteps, rank: int) -> Iterator[TimeRow]:
    """Work outside every step, numbered as the step that it would be part of."""
    numbers = found.windows["step"].to_list()
    parts = outside.partition_by("before", as_dict=True)
    for (before,), rows in sorted(parts.items()):
        step = numbers[before - 1] + (before == len(numbers)) if before else numbers[0] - 1
        row = device_row(rows, rank=rank, step=step)
        if row is not None:
            yield _marked(row, before, len(numbers))


def _marked(row: TimeRow, before: int, steps: int) -> TimeRow:
    where = {0: BEFORE_FIRST, steps: AFTER_LAST}.get(before, BETWEEN)
    return replace(row, partial=where)
