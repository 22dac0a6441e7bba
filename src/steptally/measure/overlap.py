"""Where a rank's step went: compute, communication of each group, their overlap, idle.

The definitions are DESIGN.md's and docs/formulas/overlap.md derives them with a worked example.
On a device they rest on kernels, on CPU ranks on operators and on gloo's transfers; from there on
the arithmetic is the same, so the two compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from steptally.measure.shares import Activity, Lanes, RowOf, time_row, time_rows
from steptally.tally import TimeRow
from steptally.trace.intervals import EMPTY, Intervals, merge, subtract, unite
from steptally.trace.schema import Trace
from steptally.trace.steps import step_windows

DEVICE_WORK = ("compute", "communication", "copy", "memset", "graph")
# Times of rows side by side must fit int64; corrupt ones (a start of 0 beside Unix time) do not.
_LONGEST_AXIS_NS = 2**62
# What an operator's thread does for a collective is no compute.
_FOR_COLLECTIVES = ("wait", "issue", "collective")


def whole_time(trace: Trace) -> TimeRow | None:
    """The whole recording as one row (step 0); None where no work was recorded.

    span is first start to last end of any device event, or of any operator, wait or transfer
    where the rank has no device.
    """
    if trace.has_device:
        return device_row(trace.events, rank=trace.rank or 0, step=0)
    work = trace.events.filter(pl.col("kind").is_in(("operator", "wait", "transfer")))
    if work.is_empty():
        return None
    start, end = _span(work)
    activity = host_activity(trace.events)
    instances = _host_instances(trace.events)
    return time_row(activity, instances, start, end, rank=trace.rank or 0, step=0)


def step_times(trace: Trace) -> list[TimeRow]:
    """One row for each recorded step, in order.

    A device's step holds the events launched in it, and spans from their first start to their
    last end. A CPU rank's step is the window of its `ProfilerStep` annotation; communication that
    runs on into the next step counts in each for its own part.
    """
    windows = step_windows(trace.events)
    works = pl.col("kind").is_in((*DEVICE_WORK, "transfer"))
    parts = trace.events.filter(works).partition_by("step", as_dict=True)
    by_step = {step: rows for (step,), rows in parts.items() if step is not None}
    rank = trace.rank or 0
    if trace.has_device:
        work = trace.events.filter(pl.col("kind").is_in(DEVICE_WORK))
        return device_step_rows(work, windows["step"].to_list(), rank=rank)
    activity = host_activity(trace.events)
    rows = []
    for step, start, end in windows.iter_rows():
        instances = _host_instances(by_step[step]) if step in by_step else {}
        own = activity.within(start, end)
        rows.append(time_row(own, instances, start, end, rank=rank, step=step))
    return rows


def host_activity(events: pl.DataFrame) -> Activity:
    """What a CPU rank did: operators less the time their threads spend on collectives.

    Operators nest (an autograd function holds those it calls), so their union is that of the
    outermost. Operators on gloo's own threads serve a transfer and are part of it.
    """
    transfers = events.filter(pl.col("kind") == "transfer")
    on_caller = pl.col("name").is_in(("gloo:send", "gloo:recv"))
    gloo_threads = transfers.filter(~on_caller)["thread"].unique()
    callers = events.filter(~pl.col("thread").is_in(gloo_threads.implode()))
    computing = [
        subtract(
            _merged(thread.filter(pl.col("kind") == "operator")),
            _merged(thread.filter(pl.col("kind").is_in(_FOR_COLLECTIVES))),
        )
        for thread in callers.partition_by("process", "thread")
    ]
    communication = _merged_by_group(transfers)
    return Activity(compute=unite(*computing), communication=communication, copies=EMPTY)


def device_activity(events: pl.DataFrame) -> Activity:
    """What these events kept a device busy with, over all its streams."""
    kind, events = events["kind"], events.select("start_ns", "end_ns", "group")
    return Activity(
        compute=_merged(events.filter(kind == "compute")),
        communication=_merged_by_group(events.filter(kind == "communication")),
        copies=_merged(events.filter(kind.is_in(("copy", "memset")))),
        graphs=_merged(events.filter(kind == "graph")),
    )


def device_row(events: pl.DataFrame, *, rank: int, step: int) -> TimeRow | None:
    """The shares of a device's time over these events; None where it did no work."""
    work = events.filter(pl.col("kind").is_in(DEVICE_WORK))
    if work.is_empty():
        return None
    whole = work.with_columns(lane=pl.lit(0, dtype=pl.Int64))
    return device_rows(whole, rank=rank, steps=[step])[0]


def device_step_rows(work: pl.DataFrame, steps: Sequence[int], *, rank: int) -> list[TimeRow]:
    """One row for each of `steps`, in this order, that has work (columns `step` and the kind's)."""
    present = set(work["step"].drop_nulls().unique())
    recorded = [step for step in steps if step in present]
    if not recorded:
        return []
    lanes = {step: lane for lane, step in enumerate(recorded)}
    placed = work.filter(pl.col("step").is_in(recorded)).with_columns(
        lane=pl.col("step").replace_strict(lanes, return_dtype=pl.Int64)
    )
    return device_rows(placed, rank=rank, steps=recorded)


def device_rows(work: pl.DataFrame, *, rank: int, steps: Sequence[int]) -> list[TimeRow]:
    """The shares of several rows of a device's work: column `lane` is the place in `steps`.

    Every step has work.
    """
    spans = work.group_by("lane").agg(begin=pl.col("start_ns").min(), end=pl.col("end_ns").max())
    spans = spans.sort("lane")
    width = int((spans["end"] - spans["begin"]).to_numpy().max()) + 1
    if len(steps) > 1 and width * len(steps) > _LONGEST_AXIS_NS:
        lanes = work.partition_by("lane", maintain_order=True, as_dict=True)
        each = [lanes[lane,].with_columns(lane=pl.lit(0, pl.Int64)) for lane in spans["lane"]]
        rows = zip(each, steps, strict=True)
        return [device_rows(own, rank=rank, steps=[step])[0] for own, step in rows]
    lane = work["lane"].to_numpy()
    shift = pl.Series(lane * width - spans["begin"].to_numpy()[lane])
    moved = work.select("kind", "group", pl.col("start_ns", "end_ns") + shift)
    instances = _instances(work)
    rows_of = [
        RowOf(rank=rank, step=step, span_ns=end - begin, instances=instances.get(lane, {}))
        for step, (lane, begin, end) in zip(steps, spans.iter_rows(), strict=True)
    ]
    return time_rows(device_activity(moved), rows_of, Lanes(count=len(rows_of), width_ns=width))


def _instances(events: pl.DataFrame) -> dict[int, dict[str, int]]:
    """The number of collectives by lane and group: several transfers of one collective are one."""
    moves = events["kind"].is_in(("communication", "transfer"))
    moving = events.select("lane", "group", "collective").filter(moves)
    each_once = moving.with_row_index("row").unique(
        ["lane", pl.coalesce("collective", -1 - pl.col("row").cast(pl.Int64))]
    )
    counts: dict[int, dict[str, int]] = {}
    for lane, group, count in each_once.group_by("lane", "group").len().iter_rows():
        counts.setdefault(lane, {})[group] = count
    return counts


def _host_instances(events: pl.DataFrame) -> dict[str, int]:
    """The number of collectives by group, of one row."""
    return _instances(events.with_columns(lane=pl.lit(0, dtype=pl.Int64))).get(0, {})


def _span(events: pl.DataFrame) -> tuple[int, int]:
    start, end = events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return int(start), int(end)


def _merged(events: pl.DataFrame) -> Intervals:
    return merge(events["start_ns"].to_numpy(), events["end_ns"].to_numpy())


def _merged_by_group(events: pl.DataFrame) -> dict[str, Intervals]:
    return {str(group): _merged(rows) for (group,), rows in events.group_by("group")}
