"""What communication costs the compute that hides it: the same kernels overlapped and alone.

Kernels compared have the same name, launch shape and, where the operator's shapes are recorded,
FLOPs, so that they do the same work. The contention factor is the median duration under
communication over the median alone; the net gain of overlap is the communication hidden less the
time by which compute became longer. See docs/formulas/overlap.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from steptally.measure.gaps import covered_ns
from steptally.tally import ContentionRow, NetGainRow
from steptally.trace.intervals import Intervals, intersect, merge, total

# Families whose kernels take the same time for the same launch: elementwise kernels vary.
COMPARED = ("gemm", "attention")
# Medians of fewer runs than this say nothing.
FEWEST_RUNS = 3
# Kernels of one rank that are kept: the most lengthened.
MOST_ROWS = 20
# A kernel counts as overlapped when communication runs for at least this part of it.
OVERLAPPED = 0.9
_SAME_WORK = ("name", "launch_shape", "operator_flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The kernels measured both ways, the net gain, or why there is none."""

    rows: tuple[ContentionRow, ...] = ()
    net_gain: NetGainRow | None = None
    refusal: str = ""


def contention(work: pl.DataFrame, rank: int) -> Contention:
    """Compare a rank's kernels; `work` has the columns `family` and `operator_flops`."""
    work = work.select("kind", "family", "start_ns", "end_ns", *_SAME_WORK)
    communication = _merged(_times(work, "communication"))
    kernels = work.filter((pl.col("kind") == "compute") & pl.col("family").is_in(COMPARED))
    if not communication.size or kernels.is_empty():
        missing = "communication" if not communication.size else "GEMM or attention kernel"
        return Contention(refusal=f"contention: not applicable, there is no {missing}")
    if kernels["launch_shape"].null_count() == len(kernels):
        return Contention(
            refusal="contention: the trace does not tell kernels' grids, so that "
            "kernels of one name may do different work"
        )
    touched_ns = covered_ns(communication, kernels["end_ns"].to_numpy()) - covered_ns(
        communication, kernels["start_ns"].to_numpy()
    )
    timed = kernels.select(
        *_SAME_WORK, "start_ns", "end_ns",
        duration_ns=pl.col("end_ns") - pl.col("start_ns"), touched_ns=pl.Series(touched_ns),
    ).drop_nulls("launch_shape")  # fmt: skip
    measured = _measured_both_ways(timed)
    if measured.is_empty():
        return Contention(
            refusal="contention: no kernel and launch shape has "
            f"{FEWEST_RUNS} runs under communication and {FEWEST_RUNS} alone; record more steps"
        )
    rows = tuple(
        ContentionRow(rank=rank, factor=row["overlapped_median_ns"] / row["alone_median_ns"], **row)
        for row in measured.iter_rows(named=True)
    )
    net_gain = _net_gain(work, communication, timed, measured, rows, rank)
    return Contention(rows=rows[:MOST_ROWS], net_gain=net_gain)


def _measured_both_ways(timed: pl.DataFrame) -> pl.DataFrame:
    """The kernels with enough runs on either side; runs that overlap in part are on none."""
    duration, touched = pl.col("duration_ns"), pl.col("touched_ns")
    overlapped = (touched >= OVERLAPPED * duration) & (touched > 0)
    alone = touched == 0
    alone_median = duration.filter(alone).median()
    return (
        timed.group_by(_SAME_WORK)
        .agg(
            overlapped=overlapped.sum(),
            alone=alone.sum(),
            overlapped_median_ns=duration.filter(overlapped).median(),
            alone_median_ns=alone_median,
            lengthened_ns=(duration.filter(touched > 0) - alone_median)
            .sum()
            .round()
            .cast(pl.Int64),
        )
        .filter(
            (pl.col("overlapped") >= FEWEST_RUNS)
            & (pl.col("alone") >= FEWEST_RUNS)
            & (pl.col("alone_median_ns") > 0)
        )
        .sort(pl.col("lengthened_ns").neg(), *_SAME_WORK)
    )


def _net_gain(
    work: pl.DataFrame,
    communication: Intervals,
    timed: pl.DataFrame,
    measured: pl.DataFrame,
    rows: tuple[ContentionRow, ...],
    rank: int,
) -> NetGainRow:
    compute = _merged(_times(work, "compute"))
    hidden = intersect(communication, compute)
    keys = measured.select(_SAME_WORK)
    compared = _merged(
        timed.filter(pl.col("touched_ns") > 0).join(
            keys, on=_SAME_WORK, how="semi", nulls_equal=True
        )
    )
    under = sum(row.overlapped * row.overlapped_median_ns for row in rows)
    without = sum(row.overlapped * row.alone_median_ns for row in rows)
    lengthened_ns = sum(row.lengthened_ns for row in rows)
    return NetGainRow(
        rank=rank,
        hidden_ns=total(hidden),
        lengthened_ns=lengthened_ns,
        net_gain_ns=total(hidden) - lengthened_ns,
        factor=under / without,
        covered_share=total(intersect(hidden, compared)) / max(total(hidden), 1),
    )


def _times(work: pl.DataFrame, kind: str) -> pl.DataFrame:
    return work.select("start_ns", "end_ns").filter(work["kind"] == kind)


def _merged(work: pl.DataFrame) -> Intervals:
    return merge(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
