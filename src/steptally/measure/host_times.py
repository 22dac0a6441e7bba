"""Where a CPU rank's time went: the rows of `overlap`, over a recording or chosen steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import polars as pl

from steptally.errors import InputError
from steptally.measure.device_times import WHOLE_RECORDING, RecordedTimes
from steptally.measure.overlap import step_times, whole_time
from steptally.tally import TimeRow
from steptally.tally.ranges import number_ranges
from steptally.trace.schema import Trace


def host_times(trace: Trace, rank: int, steps: tuple[int, int] | None) -> RecordedTimes:
    """The rows of a rank without a device; of `steps` (first, last) only, where given.

    Raises `InputError` where the recording has none of these.
    """
    rows = tuple(_of_rank(row, rank) for row in step_times(trace))
    if steps is not None:
        first, last = steps
        chosen = tuple(row for row in rows if first <= row.step <= last)
        if not chosen:
            raise no_such_steps(trace.source, steps, [row.step for row in rows])
        rows = chosen
        inside = pl.col("step").is_between(first, last)
        trace = replace(trace, events=trace.events.filter(inside))
    recording = whole_time(trace)
    if recording is None:  # steps are annotated, and no work is recorded in any
        return RecordedTimes()
    recording = replace(recording, rank=rank, step=WHOLE_RECORDING)
    return RecordedTimes(recording=recording, steps=rows)


def no_such_steps(source: Path, steps: tuple[int, int], known: Iterable[int]) -> InputError:
    """What to say where a recording has none of the steps that were asked for."""
    recorded = number_ranges(known)
    there = f"has the steps {recorded}" if recorded else "has no steps that can be told"
    first, last = steps
    asked = f"step {first}" if first == last else f"steps {first} to {last}"
    return InputError(
        f"--steps asks for {asked}, but {source} {there}: choose from these, or leave it out."
    )


def _of_rank(row: TimeRow, rank: int) -> TimeRow:
    return replace(row, rank=rank)
