"""Chains of memory-bound kernels that follow each other on a stream: candidates for fusion.

Each kernel of such a chain reads what the one before it wrote. In one kernel the tensors between
them would stay in registers: written once and read once less for every neighbouring pair.
"""

from __future__ import annotations

import polars as pl

from steptally.tally import FusionRow

MEMORY_BOUND = ("elementwise", "norm", "reduction", "copy")
# Chains of one rank that are kept: the longest in time.
MOST_CHAINS = 50


def fusion_rows(work: pl.DataFrame, rank: int) -> list[FusionRow]:
    """The chains of a rank, those with the most time first; equal chains are counted together.

    `work` has the columns `family` and `step`. A chain ends at a step's end, and at any other work
    of its stream.
    """
    bound = (pl.col("kind") == "compute") & pl.col("family").is_in(MEMORY_BOUND)
    place = ("device", "stream", "step")
    ordered = work.select(
        *place,
        "name",
        "start_ns",
        bound=bound,
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
    ).sort("device", "stream", "start_ns", maintain_order=True)
    breaks = pl.any_horizontal(pl.col("bound", *place).ne_missing(pl.col("bound", *place).shift(1)))
    runs = (
        ordered.with_columns(run=breaks.cum_sum())
        .filter("bound")
        .group_by("run", maintain_order=True)
        .agg(chain=pl.col("name"), duration_ns=pl.col("duration_ns").sum())
        .filter(pl.col("chain").list.len() > 1)
    )
    chains = (
        runs.group_by("chain")
        .agg(count=pl.len(), total_ns=pl.col("duration_ns").sum())
        .sort("total_ns", pl.col("chain").list.join(" "), descending=[True, False])
        .head(MOST_CHAINS)
    )
    return [
        FusionRow(chain=tuple(chain), count=count, total_ns=total_ns, rank=rank)
        for chain, count, total_ns in chains.iter_rows()
    ]
