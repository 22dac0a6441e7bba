"""Tests of a device's recording: does its work have launches, possible durations, one clock?"""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.launch_calls import (
    capturing_calls,
    graph_launches,
    is_graph_launch,
    kernel_launches,
    unseen_replays,
    without_work,
)
from steptally.measure.step_finding import FoundSteps
from steptally.measure.trust import BUSY_BASED, DOWNGRADED, GOOD, NOTED, judged
from steptally.tally import GapRow, TimeRow, TrustRow
from steptally.tally.ranges import number_ranges
from steptally.trace.intervals import merge, total

# An event that holds this many later ones of its own stream did not last so long.
FEWEST_HELD = 3
# No kernel runs for an hour.
LONGEST_NS = 3_600 * 10**9
# Clocks of host and device that agree to this do not move a gap from one cause to another.
CLOCKS_AGREE_NS = 10_000

_PLACED = ("queue", "start_ns", "end_ns")
LAUNCH_BASED = "gaps, steps of work without a launch"


def device_trust(
    work: pl.DataFrame,
    launches: pl.DataFrame,
    recording: TimeRow | None,
    gaps: GapRow | None,
    found: FoundSteps,
    rank: int,
) -> list[TrustRow]:
    """The tests of what a device's recording shows; none where it shows nothing."""
    if recording is None:
        return []
    return [
        _unlinked(work, rank),
        _lost(work, launches, rank),
        _overlong(work, recording, rank),
        _same_stream(work, rank),
        _before_launch(work, rank),
        _replays(work, launches, gaps, rank),
        _captures(launches, found, rank),
    ]


def _unlinked(work: pl.DataFrame, rank: int) -> TrustRow:
    count = work["launch_start_ns"].null_count()
    return judged(
        rank,
        "unlinked",
        count,
        len(work),
        f"{count:,} of {len(work):,} pieces of work have no recorded launch",
        LAUNCH_BASED,
        refuses=False,
    )


def _lost(work: pl.DataFrame, launches: pl.DataFrame, rank: int) -> TrustRow:
    """Launched kernels of which the device shows nothing; a graph's launch is no kernel's."""
    kernels = kernel_launches(launches)
    lost = len(without_work(kernels, work))
    return judged(
        rank,
        "lost",
        lost,
        len(kernels),
        f"{lost:,} of {len(kernels):,} launched kernels were not recorded on the device",
        BUSY_BASED,
    )


def _overlong(work: pl.DataFrame, recording: TimeRow, rank: int) -> TrustRow:
    """Events that go on while their own stream runs several others from start to end.

    Streams run in order, so that such a duration is corrupt (TraceLens#669); replays of graphs run
    branches side by side and are left out.
    """
    in_order = ~is_graph_launch(work) & (work["kind"] != "graph")
    ordered = work.select(_PLACED).filter(in_order)
    held = 0
    spans: list[tuple[int, int]] = []
    for stream in ordered.partition_by("queue"):
        start, end = stream["start_ns"].to_numpy(), stream["end_ns"].to_numpy()
        # Of the later starts, those before this end: all but the last are held entirely, as far
        # as they themselves run in order.
        within = np.searchsorted(start, end, side="left") - np.arange(start.size) - 1
        bad = np.flatnonzero((within > FEWEST_HELD) | (end - start > LONGEST_NS))
        held += bad.size
        spans += list(zip(start[bad].tolist(), end[bad].tolist(), strict=True))
    alone = merge([one for one, _ in spans], [other for _, other in spans])
    duration_ns = total(alone)
    return judged(
        rank,
        "overlong",
        held,
        len(work),
        f"{held:,} events last longer than their stream allows"
        + (f", {duration_ns / 1e6:.3f} ms together" if held else ""),
        BUSY_BASED,
        share=duration_ns / max(recording.busy_ns, 1) if held else 0.0,
        duration_ns=duration_ns,
    )


def _same_stream(work: pl.DataFrame, rank: int) -> TrustRow:
    """Neighbours on one stream that overlap: programmatic dependent launch, branches of graphs."""
    ordered = work.select(_PLACED).sort("queue", maintain_order=True)  # by start, as work is
    queue, start, end = (ordered[name].to_numpy() for name in _PLACED)
    overlap_ns = np.minimum(end[:-1], end[1:]) - start[1:]
    overlap_ns = overlap_ns[(queue[:-1] == queue[1:]) & (overlap_ns > 0)]
    count = overlap_ns.size
    duration_ns = int(pl.Series(overlap_ns).cast(pl.Int128).sum())
    return TrustRow(
        rank=rank,
        check="same-stream overlaps",
        count=count,
        of=len(work),
        verdict=NOTED if count else GOOD,
        finding=f"{count:,} pieces of work begin before the one ahead on their stream ends",
        affects="sums of kernels' durations (unions are right)" if count else "",
        duration_ns=duration_ns,
    )


def _before_launch(work: pl.DataFrame, rank: int) -> TrustRow:
    """Work that starts before it is launched: the clocks of host and device disagree."""
    early = work.select(pl.col("launch_start_ns") - pl.col("start_ns")).to_series().drop_nulls()
    early = early.filter(early > 0)
    worst_ns = int(early.max() or 0)  # type: ignore[arg-type]
    return TrustRow(
        rank=rank,
        check="starts before its launch",
        count=len(early),
        of=len(work),
        verdict=DOWNGRADED if worst_ns > CLOCKS_AGREE_NS else NOTED if len(early) else GOOD,
        finding=f"{len(early):,} pieces of work start before their launch is called"
        + (
            f", by up to {worst_ns / 1e3:.3f} µs; gaps take the launch as the start"
            if len(early)
            else ""
        ),
        affects="gaps: host and device clocks disagree by at least that" if len(early) else "",
        duration_ns=worst_ns,
    )


def _replays(
    work: pl.DataFrame, launches: pl.DataFrame, gaps: GapRow | None, rank: int
) -> TrustRow:
    """Replays of graphs: their kernels may be missing, so that idle time is not what it seems."""
    replays = graph_launches(launches)
    unseen = len(unseen_replays(work, launches))
    untold_ns = gaps.untold_ns if gaps and len(replays) else 0
    silent = untold_ns > 0 or unseen > 0
    finding = f"{len(replays):,} replays of graphs, {unseen:,} without any recorded kernel"
    if silent:
        finding += f"; {untold_ns / 1e6:.3f} ms of idle time may be work of graphs"
    return TrustRow(
        rank=rank,
        check="graph replays",
        count=unseen,
        of=len(replays),
        verdict=DOWNGRADED if silent else NOTED if len(replays) else GOOD,
        finding=finding if len(replays) else "no graph was replayed",
        affects="idle (an upper bound), busy and compute (lower bounds)" if silent else "",
        duration_ns=untold_ns,
    )


def _captures(launches: pl.DataFrame, found: FoundSteps, rank: int) -> TrustRow:
    """Graphs captured while recording: their steps are no steps to measure."""
    calls = np.sort(capturing_calls(launches)["launch_start_ns"].to_numpy())
    starts, ends = (found.windows[name].to_numpy() for name in ("start_ns", "end_ns"))
    holds = np.searchsorted(calls, starts) < np.searchsorted(calls, ends)
    steps = found.windows["step"].filter(pl.Series(holds)).to_list()
    where = f" in step {number_ranges(steps)}" if steps and found.launched else ""
    return TrustRow(
        rank=rank,
        check="graph captures",
        count=len(calls),
        of=len(launches),
        verdict=DOWNGRADED if len(calls) else GOOD,
        finding=f"graphs are captured{where}: leave that out with --steps"
        if len(calls)
        else "no graph was captured",
        affects="the steps that hold a capture" if len(calls) else "",
    )
