"""Where a CPU rank's time went: the rows of `overlap`, over a recording or chosen steps."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from steptally.measure.device_times import WHOLE_RECORDING, RecordedTimes
from steptally.measure.overlap import step_times, whole_time
from steptally.tally import TimeRow
from steptally.trace.schema import Trace


def host_times(trace: Trace, rank: int, steps: tuple[int, int] | None) -> RecordedTimes:
    """The rows of a rank without a device; of `steps` (first, last) only, where given."""
    rows = tuple(_of_rank(row, rank) for row in step_times(trace))
    if steps is not None:
        first, last = steps
        chosen = tuple(row for row in rows if first <= row.step <= last)
        if chosen:
            rows = chosen
            inside = pl.col("step").is_between(first, last)
            trace = replace(trace, events=trace.events.filter(inside))
    recording = whole_time(trace)
    if recording is not None:
        recording = replace(recording, rank=rank, step=WHOLE_RECORDING)
    return RecordedTimes(recording=recording, steps=rows)


def _of_rank(row: TimeRow, rank: int) -> TimeRow:
    return replace(row, rank=rank)
