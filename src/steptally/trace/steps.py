"""Which recorded step each event belongs to.

A step is the window of its `ProfilerStep#<n>` annotation on a host thread; the copy that a profiler
draws on the device is no window (it begins with the first kernel). Host events belong to the step
in which they start, device events to the one in which the host launched them, since a kernel may
still run when the host has gone on; without a known launch, to the one in which they start.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.trace.first_places import NOWHERE, first_places
from steptally.trace.kinds import step_number
from steptally.trace.schema import DEVICE_KINDS

NO_STEP = -1


def step_windows(events: pl.DataFrame) -> pl.DataFrame:
    """The recorded steps in order of time: step, start_ns, end_ns."""
    found = events.filter(pl.col("kind") == "step")
    numbers = [step_number(name) for name in found["name"]]
    numbered = found.select(pl.Series("step", numbers, dtype=pl.Int64), "start_ns", "end_ns")
    return (
        numbered.group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
    )


def assign_steps(events: pl.DataFrame) -> pl.DataFrame:
    """The events with their column `step`, null outside every recorded step."""
    windows = step_windows(events)
    if windows.is_empty():
        return events.with_columns(step=pl.lit(None, dtype=pl.Int64))
    own = _step_at(events["start_ns"].to_numpy(), windows)
    on_device = events["kind"].is_in(DEVICE_KINDS).to_numpy()
    launched = np.full(len(events), NO_STEP)
    launched[on_device] = _step_of_launch(events, own, np.flatnonzero(on_device))
    step = pl.Series("step", np.where(launched != NO_STEP, launched, own))
    return events.with_columns(step.set(step == NO_STEP, None))


def _step_at(times: npt.NDArray[np.int64], windows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The step whose window holds each time."""
    starts, ends = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    last_started = np.searchsorted(starts, times, side="right") - 1
    inside = (last_started >= 0) & (times < ends[last_started])
    return np.where(inside, windows["step"].to_numpy()[last_started], NO_STEP)


def _step_of_launch(
    events: pl.DataFrame, own: npt.NDArray[np.int64], work: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The step of the first host call with the correlation of each row in `work`."""
    launches = (events["kind"] == "launch") & events["correlation"].is_not_null()
    rows = np.flatnonzero(launches.to_numpy())
    if rows.size == 0:
        return np.full(work.size, NO_STEP)
    correlation = events["correlation"]
    place = first_places(correlation.gather(rows), correlation.gather(work))
    return np.where(place == NOWHERE, NO_STEP, own[rows[place]])
