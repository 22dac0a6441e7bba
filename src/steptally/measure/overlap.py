"""Where a rank's step went: compute, communication of each group, their overlap, idle.

The definitions are DESIGN.md's and docs/formulas/overlap.md derives them with a worked example.
On a device they rest on kernels, on CPU ranks on operators and on gloo's transfers; from there on
the arithmetic is the same, so the two compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import polars as pl

from steptally.tally import GroupPair, GroupTime, TimeRow
from steptally.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    intersect,
    merge,
    subtract,
    total,
    unite,
)
from steptally.trace.schema import Trace
from steptally.trace.steps import step_windows

DEVICE_WORK = ("compute", "communication", "copy", "memset", "graph")
# What an operator's thread does for a collective is no compute.
_FOR_COLLECTIVES = ("wait", "issue", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What one rank did, as interval sets in nanoseconds.

    `communication` is by process group. `copies` are memory copies and memsets: busy time, but
    neither compute nor communication. So are `graphs`, replays of whole CUDA graphs of which the
    profiler does not show what they ran.
    """

    compute: Intervals
    communication: Mapping[str, Intervals]
    copies: Intervals
    graphs: Intervals = field(default_factory=lambda: EMPTY)

    def within(self, start_ns: int, end_ns: int) -> Activity:
        """The part inside a window."""
        return Activity(
            compute=clip(self.compute, start_ns, end_ns),
            communication={
                group: clip(intervals, start_ns, end_ns)
                for group, intervals in self.communication.items()
            },
            copies=clip(self.copies, start_ns, end_ns),
            graphs=clip(self.graphs, start_ns, end_ns),
        )


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
    instances = _instances(trace.events)
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
        recorded = [step for step in windows["step"] if step in by_step]
        device_rows = [device_row(by_step[step], rank=rank, step=step) for step in recorded]
        return [row for row in device_rows if row is not None]
    activity = host_activity(trace.events)
    rows = []
    for step, start, end in windows.iter_rows():
        instances = _instances(by_step[step]) if step in by_step else {}
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
    return Activity(
        compute=_merged(events.filter(pl.col("kind") == "compute")),
        communication=_merged_by_group(events.filter(pl.col("kind") == "communication")),
        copies=_merged(events.filter(pl.col("kind").is_in(("copy", "memset")))),
        graphs=_merged(events.filter(pl.col("kind") == "graph")),
    )


def time_row(
    activity: Activity,
    instances: Mapping[str, int],
    start_ns: int,
    end_ns: int,
    *,
    rank: int,
    step: int,
) -> TimeRow:
    """The shares of the span from `start_ns` to `end_ns`; `instances` counts collectives by group.

    busy + idle = span, and compute + exposed + (copies and graphs alone) + idle = span.
    """
    communication = unite(*activity.communication.values())
    overlap_ns = total(intersect(communication, activity.compute))
    busy_ns = total(unite(communication, activity.compute, activity.copies, activity.graphs))
    return TimeRow(
        rank=rank,
        step=step,
        span_ns=end_ns - start_ns,
        busy_ns=busy_ns,
        compute_ns=total(activity.compute),
        communication_ns=total(communication),
        overlap_ns=overlap_ns,
        exposed_ns=total(communication) - overlap_ns,
        idle_ns=end_ns - start_ns - busy_ns,
        groups=tuple(
            _group_time(activity, group, instances.get(group, 0))
            for group in sorted(activity.communication)
            if activity.communication[group].size
        ),
        copies_ns=total(activity.copies),
        copies_overlap_ns=total(intersect(communication, activity.copies)),
        graph_ns=total(activity.graphs),
        pairs=_pairs(activity.communication),
    )


def _pairs(communication: Mapping[str, Intervals]) -> tuple[GroupPair, ...]:
    """The groups that communicate at the same time, with how long they do."""
    return tuple(
        GroupPair(groups=(one, other), overlap_ns=overlap_ns)
        for one, other in combinations(sorted(communication), 2)
        if (overlap_ns := total(intersect(communication[one], communication[other])))
    )


def _group_time(activity: Activity, group: str, instances: int) -> GroupTime:
    own = activity.communication[group]
    others = unite(*(times for name, times in activity.communication.items() if name != group))
    exposed = subtract(own, activity.compute)
    return GroupTime(
        group=group,
        instances=instances,
        communication_ns=total(own),
        overlap_ns=total(own) - total(exposed),
        exposed_ns=total(exposed),
        exposed_alone_ns=total(subtract(exposed, others)),
    )


def device_row(events: pl.DataFrame, *, rank: int, step: int) -> TimeRow | None:
    """The shares of a device's time over these events; None where it did no work."""
    work = events.filter(pl.col("kind").is_in(DEVICE_WORK))
    if work.is_empty():
        return None
    start, end = _span(work)
    return time_row(device_activity(work), _instances(work), start, end, rank=rank, step=step)


def _instances(events: pl.DataFrame) -> dict[str, int]:
    """The number of collectives by group: several transfers of one collective are one."""
    moving = events.with_row_index("row").filter(
        pl.col("kind").is_in(("communication", "transfer"))
    )
    each_once = moving.unique([pl.coalesce("collective", -1 - pl.col("row").cast(pl.Int64))])
    return dict(each_once.group_by("group").len().iter_rows())


def _span(events: pl.DataFrame) -> tuple[int, int]:
    start, end = events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return int(start), int(end)


def _merged(events: pl.DataFrame) -> Intervals:
    return merge(events["start_ns"].to_numpy(), events["end_ns"].to_numpy())


def _merged_by_group(events: pl.DataFrame) -> dict[str, Intervals]:
    return {str(group): _merged(rows) for (group,), rows in events.group_by("group")}
