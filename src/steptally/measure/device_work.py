"""What one device did, as a frame: each piece of work with the host call that launched it.

All that `measure` tells of a device rests on this frame. It is small beside the recording (one row
in ten of a usual trace), so that every account is a few vectorised passes over it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.overlap import DEVICE_WORK
from steptally.measure.step_finding import FoundSteps

_KEPT = (
    "event", "device", "stream", "start_ns", "end_ns", "name", "kind", "group", "collective",
    "correlation", "graph", "launch_shape",
)  # fmt: skip


def host_launches(events: pl.DataFrame) -> pl.DataFrame:
    """The runtime's calls: event, thread, launch_start_ns, launch_end_ns, launch_name, correlation.

    A correlation of 0 is none (ROCm writes it where it knows no call).
    """
    return (
        events.with_row_index("event")
        .filter(pl.col("kind") == "launch")
        .select(
            "event",
            "thread",
            launch_start_ns="start_ns",
            launch_end_ns="end_ns",
            launch_name="name",
            correlation=pl.when(pl.col("correlation") > 0).then("correlation"),
        )
    )


def device_work(events: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """The device's work by start, each row with the columns of its launch (null without one)."""
    work = (
        events.with_row_index("event")
        .filter(pl.col("kind").is_in(DEVICE_WORK))
        .select(_KEPT)
        .with_columns(correlation=pl.when(pl.col("correlation") > 0).then("correlation"))
    )
    linked = launches.drop_nulls("correlation").unique(
        "correlation", keep="first", maintain_order=True
    )
    return work.join(linked.drop("event"), on="correlation", how="left").sort(
        "start_ns", "end_ns", "event"
    )


def with_steps(work: pl.DataFrame, found: FoundSteps) -> pl.DataFrame:
    """`work` with the columns `step` and `before`.

    `step` is null for what belongs to no step; `before` is the number of steps that had begun by
    then. Work belongs to the step in which the host launched it, since a kernel may still run when
    the host has gone on; without a known launch, or where the steps are the device's own, to the
    one in which it starts.
    """
    starts, ends, steps = (
        found.windows[name].to_numpy() for name in ("start_ns", "end_ns", "step")
    )
    time = work["start_ns"]
    if found.launched:
        time = work["launch_start_ns"].fill_null(time)
    begun = np.searchsorted(starts, time.to_numpy(), side="right")
    before = pl.Series("before", begun, dtype=pl.Int64)
    if not len(steps):
        return work.with_columns(before, step=pl.lit(None, dtype=pl.Int64))
    last = np.maximum(begun - 1, 0)
    inside = (begun > 0) & (time.to_numpy() < ends[last])
    step = pl.Series("step", steps[last], dtype=pl.Int64).set(pl.Series(~inside), None)
    return work.with_columns(before, step)
