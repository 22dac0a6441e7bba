"""What one device did, as a frame: each piece of work with the host call that launched it.

All that `measure` tells of a device rests on this frame. It is small beside the recording (one row
in ten of a usual trace), so that every account is a few vectorised passes over it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.overlap import DEVICE_WORK
from steptally.measure.step_finding import FoundSteps
from steptally.trace.first_places import NOWHERE, first_places

_KEPT = (
    "device", "stream", "start_ns", "end_ns", "name", "kind", "group", "collective",
    "correlation", "graph", "launch_shape",
)  # fmt: skip
_OF_LAUNCH = ("thread", "launch_start_ns", "launch_end_ns", "launch_name")
# ROCm writes a correlation of 0 where it knows no call.
_KNOWN_CORRELATION = pl.when(pl.col("correlation") > 0).then("correlation")


def host_launches(events: pl.DataFrame) -> pl.DataFrame:
    """The runtime's calls: event, thread, launch_name, launch_start_ns, launch_end_ns, correlation.

    Names are an `Enum` of those that occur (`coded`).
    """
    rows = (events["kind"] == "launch").arg_true()
    calls = events.select("thread", "start_ns", "end_ns", "name", "correlation")[rows]
    return calls.select(
        rows.alias("event"),
        "thread",
        coded(calls["name"]).alias("launch_name"),
        launch_start_ns="start_ns",
        launch_end_ns="end_ns",
        correlation=_KNOWN_CORRELATION,
    )


def device_work(events: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """The device's work by start, each row with the columns of its launch (null without one).

    `queue` numbers its stream: streams of one number on different devices are not the same.
    """
    rows = events["kind"].is_in(DEVICE_WORK).arg_true()
    start, end = (events[name].gather(rows).to_numpy() for name in ("start_ns", "end_ns"))
    rows = rows.gather(np.lexsort((end, start)))
    work = events.select(_KEPT)[rows].with_columns(
        rows.alias("event"), correlation=_KNOWN_CORRELATION
    )
    place = pl.Series(first_places(launches["correlation"], work["correlation"]))
    launch = place.set(place == NOWHERE, None)
    called = launches.select(pl.col(_OF_LAUNCH).gather(launch))
    return work.with_columns(
        _queue(work), coded(work["name"]), coded(work["launch_shape"]), *called
    )


def _queue(work: pl.DataFrame) -> pl.Series:
    """A number of each row's stream, in the order of devices and their streams."""
    streams = work.select("device", "stream").unique().sort("device", "stream")
    numbered = streams.with_row_index("queue")
    return work.join(
        numbered, on=("device", "stream"), how="left", maintain_order="left", nulls_equal=True
    )["queue"]


def coded(texts: pl.Series) -> pl.Series:
    """The texts as numbers of the distinct ones, in alphabetical order.

    They group, compare and sort as before, many times faster.
    """
    return texts.cast(pl.Enum(texts.unique().drop_nulls().sort()))


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
