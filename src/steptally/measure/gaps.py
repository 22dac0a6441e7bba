"""What a device waited for while it was idle. Definitions and example: docs/formulas/gaps.md.

A gap is a stretch in which nothing runs on any stream of the device. It ends with the piece of
work that runs next; why that did not run earlier tells what the gap was:

- its launch was called in the gap, so that nothing was queued for it before. The device waited for
  the **host**; or, where the host had itself waited for the device to finish (a synchronising
  call), there was **no work** that it could have queued; or, while the host works on a collective,
  the device waited for **communication**;
- its launch was called before the gap, so that it waited in a queue. Where the gap begins with the
  end of communication on another stream, the device waited for **communication**, else for a
  **dependency** on other work (on the same stream: the turnaround from one piece to the next);
- its launch is not in the recording, or a graph was replayed whose kernels are not: **untold**.
  Inside a graph nothing waits for the host, so that its turnarounds take a microsecond or two: a
  longer silence before work of a replay is work of the graph that the profiler did not show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.measure.launch_calls import (
    is_graph_launch,
    launching_threads,
    synchronising_calls,
    unseen_replays,
)
from steptally.trace.intervals import Intervals, merge

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# No device needs longer from one piece of a stream to the next that is ready.
LONGEST_TURNAROUND_NS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The idle stretches of a device in order of time, as arrays of one entry each.

    `previous` and `following` are rows of the device's work: the one that ended last before the
    gap, and the one that ends it. `launched_ns` is when the following one's launch was called, its
    start where that is not told (`is_linked` false).
    """

    start_ns: Int64s
    end_ns: Int64s
    previous: Int64s
    following: Int64s
    launched_ns: Int64s
    is_linked: Flags

    @property
    def length_ns(self) -> Int64s:
        """How long each gap lasts."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class GapShares:
    """How each gap divides, in ns: `turnaround` is part of `dependency`, the others add up."""

    host: Int64s
    communication: Int64s
    dependency: Int64s
    turnaround: Int64s
    no_work: Int64s
    untold: Int64s


def find_gaps(work: pl.DataFrame) -> Gaps:
    """The gaps between pieces of a device's work (`device_work`, by start)."""
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    reach = np.maximum.accumulate(end) if end.size else end
    following = np.flatnonzero(start[1:] > reach[:-1]) + 1
    # The row that reached furthest so far is where the running maximum last grew.
    grew = np.concatenate((np.ones(min(end.size, 1), dtype=bool), reach[1:] > reach[:-1]))
    furthest = np.maximum.accumulate(np.where(grew, np.arange(end.size), 0))
    linked = work["launch_start_ns"].is_not_null().to_numpy()[following]
    launched = work["launch_start_ns"].fill_null(work["start_ns"]).to_numpy()[following]
    return Gaps(
        start_ns=reach[following - 1],
        end_ns=start[following],
        previous=furthest[following - 1],
        following=following,
        launched_ns=np.minimum(launched, start[following]),
        is_linked=linked,
    )


def gap_shares(
    gaps: Gaps, work: pl.DataFrame, events: pl.DataFrame, launches: pl.DataFrame
) -> GapShares:
    """What the device waited for in each gap.

    `events` are the whole recording, `launches` its runtime calls (`host_launches`).
    """
    length, late = gaps.length_ns, gaps.launched_ns - gaps.start_ns
    untold = ~gaps.is_linked | _holds_unseen_replay(gaps, work, launches)
    untold |= _silent_replay(gaps, work)
    in_gap, queued = ~untold & (late > 0), ~untold & (late <= 0)
    collective = np.where(in_gap, _host_collectives(gaps, events), 0)
    drained = in_gap & host_synchronised(gaps, work, launches)
    no_work = np.where(drained, late - collective, 0)
    after_communication, same_stream = _what_came_before(gaps, work)
    dependency = np.where(queued & ~after_communication, length, 0)
    return GapShares(
        host=np.where(in_gap, length - collective - no_work, 0),
        communication=collective + np.where(queued & after_communication, length, 0),
        dependency=dependency,
        turnaround=np.where(same_stream & (length <= LONGEST_TURNAROUND_NS), dependency, 0),
        no_work=no_work,
        untold=np.where(untold, length, 0),
    )


def host_synchronised(gaps: Gaps, work: pl.DataFrame, launches: pl.DataFrame) -> Flags:
    """Gaps that begin while a launching thread waits for the device, and end after it went on.

    A thread that launches nothing (a watchdog, one that pins memory) may wait as it likes.
    """
    found = np.zeros(gaps.start_ns.size, dtype=bool)
    calls = synchronising_calls(launches)
    for thread in launching_threads(work):
        waits = calls.filter(pl.col("thread").eq_missing(thread)).sort("launch_start_ns")
        if waits.is_empty():
            continue
        begun, done = waits["launch_start_ns"].to_numpy(), waits["launch_end_ns"].to_numpy()
        last = np.searchsorted(begun, gaps.start_ns, side="right") - 1
        ends = done[np.maximum(last, 0)]
        found |= (last >= 0) & (ends > gaps.start_ns) & (ends <= gaps.launched_ns)
    return found


def _holds_unseen_replay(gaps: Gaps, work: pl.DataFrame, launches: pl.DataFrame) -> Flags:
    """Gaps between two pieces of work, between whose launches an unseen replay was launched."""
    launched = np.sort(unseen_replays(work, launches)["launch_start_ns"].to_numpy())
    own_launch = work["launch_start_ns"].fill_null(work["start_ns"]).to_numpy()
    since = np.searchsorted(launched, own_launch[gaps.previous], side="right")
    return np.searchsorted(launched, gaps.launched_ns, side="left") > since


def _silent_replay(gaps: Gaps, work: pl.DataFrame) -> Flags:
    """Gaps before work of a graph's replay, launched before them, that no turnaround explains.

    A replay that is recorded as one whole (kind `graph`) has no silent part.
    """
    replayed = (is_graph_launch(work) & (work["kind"] != "graph")).to_numpy()
    queued = gaps.launched_ns <= gaps.start_ns
    return replayed[gaps.following] & queued & (gaps.length_ns > LONGEST_TURNAROUND_NS)


def _host_collectives(gaps: Gaps, events: pl.DataFrame) -> Int64s:
    """How long the host works on a collective, or waits for one, before each gap's launch."""
    host = events.filter(pl.col("kind").is_in(("transfer", "wait")))
    busy = merge(host["start_ns"].to_numpy(), host["end_ns"].to_numpy())
    return covered_ns(busy, gaps.launched_ns) - covered_ns(busy, gaps.start_ns)


def _what_came_before(gaps: Gaps, work: pl.DataFrame) -> tuple[Flags, Flags]:
    """Whether a gap follows communication of another stream, and whether its own stream's work."""
    communication = (work["kind"] == "communication").to_numpy()
    places = work.select("device", "stream")
    before, after = places[gaps.previous], places[gaps.following]
    same_device, same_stream = (
        before[name].eq_missing(after[name]).to_numpy() for name in places.columns
    )
    same = same_device & same_stream
    return communication[gaps.previous] & ~same, same


def covered_ns(intervals: Intervals, times: Int64s) -> Int64s:
    """How much of a set of intervals lies before each time."""
    if not intervals.size:
        return np.zeros(times.size, dtype=np.int64)
    starts, ends = intervals[:, 0], intervals[:, 1]
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    begun = np.searchsorted(starts, times, side="right")
    last = np.maximum(begun - 1, 0)
    inside = np.where(begun > 0, np.minimum(times, ends[last]) - starts[last], 0)
    return np.where(begun > 0, before[last], 0) + inside
