"""One device's gaps as a row: their causes, its short kernels, and what a CUDA graph could save."""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.gaps import Gaps, GapShares, find_gaps, gap_shares, host_synchronised
from steptally.measure.launch_calls import (
    graph_launches,
    is_graph_launch,
    launching_threads,
    uncapturable_calls,
    unseen_replays,
)
from steptally.tally import GapRow

SHORT_KERNEL_NS = 10_000
# With more of the idle time untold than this, nothing is concluded from the rest.
MOST_UNTOLD = 0.5


def gap_row(
    work: pl.DataFrame, events: pl.DataFrame, launches: pl.DataFrame, rank: int
) -> GapRow | None:
    """The idle time of a device by what it waited for; None where it did no work.

    `work` is `device_work.with_steps`, `events` the recording, `launches` its runtime's calls.
    """
    if work.is_empty():
        return None
    gaps = find_gaps(work)
    shares = gap_shares(gaps, work, events, launches)
    idle_ns, untold_ns = int(gaps.length_ns.sum()), int(shares.untold.sum())
    is_kernel = (work["kind"] == "compute").to_numpy()
    duration_ns = (work["end_ns"] - work["start_ns"]).to_numpy()[is_kernel]
    short = duration_ns < SHORT_KERNEL_NS
    is_told = untold_ns <= MOST_UNTOLD * idle_ns
    return GapRow(
        rank=rank,
        span_ns=int(work["end_ns"].to_numpy().max() - work["start_ns"].to_numpy().min()),
        idle_ns=idle_ns,
        host_ns=int(shares.host.sum()),
        communication_ns=int(shares.communication.sum()),
        dependency_ns=int(shares.dependency.sum()),
        turnaround_ns=int(shares.turnaround.sum()),
        no_work_ns=int(shares.no_work.sum()),
        untold_ns=untold_ns,
        gaps=gaps.start_ns.size,
        kernels=duration_ns.size,
        short_kernels=int(short.sum()),
        short_kernels_ns=int(duration_ns[short].sum()),
        graph_launches=len(graph_launches(launches)),
        unseen_replays=len(unseen_replays(work, launches)),
        recoverable_ns=_recoverable_ns(gaps, shares, work, launches) if is_told else None,
    )


def _recoverable_ns(
    gaps: Gaps, shares: GapShares, work: pl.DataFrame, launches: pl.DataFrame
) -> int:
    """The most that CUDA graphs could recover: waiting for the host inside what one could hold.

    A graph can hold the work on both sides of a gap if both are kernels of one step, launched one
    by one, and no call came between their launches that capture forbids.
    """
    kernel = work["kind"].is_in(("compute", "communication")).to_numpy()
    replayed = is_graph_launch(work).to_numpy()
    step = work["step"].fill_null(-1).to_numpy()
    before, after = gaps.previous, gaps.following
    can_hold = kernel[before] & kernel[after] & ~replayed[before] & ~replayed[after]
    can_hold &= step[before] == step[after]
    can_hold &= ~host_synchronised(gaps, work, launches)
    launched = work["launch_start_ns"].fill_null(work["start_ns"]).to_numpy()
    forbidden = uncapturable_calls(launches).filter(
        pl.col("thread").is_in(launching_threads(work), nulls_equal=True)
    )
    calls = np.sort(forbidden["launch_start_ns"].to_numpy())
    between = np.searchsorted(calls, gaps.launched_ns) - np.searchsorted(calls, launched[before])
    return int(shares.host[can_hold & (between <= 0)].sum())
