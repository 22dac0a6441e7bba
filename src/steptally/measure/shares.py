"""The shares of a rank's time, from what it did: compute, communication, overlap, exposed, idle.

The definitions are DESIGN.md's and docs/formulas/overlap.md derives them with a worked example.

Many rows are computed at once: the times of each are moved into a *lane* of its own on one axis, so
that rows cannot touch, and every union or intersection of all rows is one vectorised pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """`count` rows side by side: row i has the times from i · `width_ns` on."""

    count: int = 1
    width_ns: int = 0

    def totals(self, intervals: Intervals) -> list[int]:
        """The summed length of each row's intervals."""
        if self.count == 1:
            return [total(intervals)]
        sums = np.zeros(self.count, dtype=np.int64)
        np.add.at(sums, intervals[:, 0] // self.width_ns, intervals[:, 1] - intervals[:, 0])
        return [int(number) for number in sums]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOf:
    """What a row is of, and what no interval tells: `instances` counts collectives by group."""

    rank: int
    step: int
    span_ns: int
    instances: Mapping[str, int]


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
    one = RowOf(rank=rank, step=step, span_ns=end_ns - start_ns, instances=instances)
    return time_rows(activity, [one], Lanes())[0]


def time_rows(activity: Activity, rows: Sequence[RowOf], lanes: Lanes) -> list[TimeRow]:
    """The shares of several rows, whose times are in their own lanes."""
    compute, by_group = activity.compute, activity.communication
    communication = unite(*by_group.values())
    busy = lanes.totals(unite(communication, compute, activity.copies, activity.graphs))
    computes, communicates, overlap, copies, under_copies, graphs = (
        lanes.totals(intervals)
        for intervals in (
            compute,
            communication,
            intersect(communication, compute),
            activity.copies,
            intersect(communication, activity.copies),
            activity.graphs,
        )
    )
    groups = _group_times(activity, rows, lanes)
    pairs = _pairs(by_group, lanes)
    return [
        TimeRow(
            rank=row.rank,
            step=row.step,
            span_ns=row.span_ns,
            busy_ns=busy[i],
            compute_ns=computes[i],
            communication_ns=communicates[i],
            overlap_ns=overlap[i],
            exposed_ns=communicates[i] - overlap[i],
            idle_ns=row.span_ns - busy[i],
            groups=groups[i],
            copies_ns=copies[i],
            copies_overlap_ns=under_copies[i],
            graph_ns=graphs[i],
            pairs=pairs[i],
        )
        for i, row in enumerate(rows)
    ]


def _group_times(
    activity: Activity, rows: Sequence[RowOf], lanes: Lanes
) -> list[tuple[GroupTime, ...]]:
    """Of each row, the groups that communicate in it, by name."""
    found: list[list[GroupTime]] = [[] for _ in rows]
    for group in sorted(activity.communication):
        own = activity.communication[group]
        others = (times for name, times in activity.communication.items() if name != group)
        exposed = subtract(own, activity.compute)
        owns, exposes = lanes.totals(own), lanes.totals(exposed)
        alone = lanes.totals(subtract(exposed, unite(*others)))
        for i, row in enumerate(rows):
            if owns[i]:
                time = GroupTime(
                    group=group,
                    instances=row.instances.get(group, 0),
                    communication_ns=owns[i],
                    overlap_ns=owns[i] - exposes[i],
                    exposed_ns=exposes[i],
                    exposed_alone_ns=alone[i],
                )
                found[i].append(time)
    return [tuple(groups) for groups in found]


def _pairs(communication: Mapping[str, Intervals], lanes: Lanes) -> list[tuple[GroupPair, ...]]:
    """Of each row, the groups that communicate at the same time, with how long they do."""
    found: list[list[GroupPair]] = [[] for _ in range(lanes.count)]
    shared = _covered_twice(communication)
    touching = [name for name, own in communication.items() if intersect(own, shared).size]
    for one, other in combinations(sorted(touching), 2):
        both = lanes.totals(intersect(communication[one], communication[other]))
        for pairs, overlap_ns in zip(found, both, strict=True):
            if overlap_ns:
                pairs.append(GroupPair(groups=(one, other), overlap_ns=overlap_ns))
    return [tuple(pairs) for pairs in found]


def _covered_twice(communication: Mapping[str, Intervals]) -> Intervals:
    """The times in which more than one group communicates."""
    starts = np.concatenate([EMPTY[:, 0], *(own[:, 0] for own in communication.values())])
    ends = np.concatenate([EMPTY[:, 1], *(own[:, 1] for own in communication.values())])
    edges = np.sort(np.concatenate((starts, ends)))
    depth = np.searchsorted(np.sort(starts), edges, side="right") - np.searchsorted(
        np.sort(ends), edges, side="right"
    )
    wanted = depth[:-1] > 1
    return merge(edges[:-1][wanted], edges[1:][wanted])
