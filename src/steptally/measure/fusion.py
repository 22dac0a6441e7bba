"""Chains of memory-bound kernels that follow each other on a stream: candidates for fusion.

Each kernel of such a chain reads what the one before it wrote. In one kernel the tensors between
them would stay in registers: every neighbouring pair saves one write and one read of its tensor.
Where shapes are recorded, a pair whose tensors do not fit ends a chain; without them a chain is a
guess at what could be fused, and its bytes are not told.
"""

from __future__ import annotations

import polars as pl

from steptally.measure.operands import KEEP_SHAPE
from steptally.tally import FusionRow

MEMORY_BOUND = ("elementwise", "norm", "reduction", "copy")
# Chains of one rank that are kept: the longest in time.
MOST_CHAINS = 50
_PLACE = ("queue", "step")


def fusion_rows(work: pl.DataFrame, rank: int) -> list[FusionRow]:
    """The chains of a rank, those with the most time first; equal chains are counted together.

    `work` has the columns `queue`, `family`, `step` and those of `operand_sizes`. A chain ends at a
    step's end, and at any other work of its stream.
    """
    bound = (pl.col("kind") == "compute") & pl.col("family").is_in(MEMORY_BOUND)
    needed = work.select(
        *_PLACE,
        "name",
        "family",
        *("operator", "out_elements", "out_bytes", "in_elements"),
        bound=bound,
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    placed = needed.sort("queue", maintain_order=True)  # by start, as work is
    paired = _paired(placed)
    breaks = pl.any_horizontal(
        pl.col("bound", *_PLACE).ne_missing(pl.col("bound", *_PLACE).shift(1)),
        ~pl.col("flows").fill_null(True),
    )
    runs = (
        paired.with_columns(run=breaks.cum_sum())
        .filter("bound")
        .with_columns(  # what a chain's first kernel read is not between its kernels
            saved=pl.when(pl.col("run") == pl.col("run").shift(1)).then("saved")
        )
        .group_by("run", maintain_order=True)
        .agg(
            chain=pl.col("name"),
            duration_ns=pl.col("duration_ns").cast(pl.Int128).sum(),
            saved=pl.col("saved").sum(),
            told=pl.col("saved").is_not_null().any(),
        )
        .filter(pl.col("chain").list.len() > 1)
    )
    chains = (
        runs.group_by("chain")
        .agg(
            count=pl.len(),
            total_ns=pl.col("duration_ns").cast(pl.Int128).sum(),
            saved_bytes=pl.when(pl.col("told").any()).then(pl.col("saved").sum()),
        )
        .cast({"chain": pl.List(pl.String)})
        .sort("total_ns", pl.col("chain").list.join(" "), descending=[True, False])
        .head(MOST_CHAINS)
    )
    return [
        FusionRow(
            chain=tuple(chain), count=count, total_ns=total_ns, saved_bytes=saved_bytes, rank=rank
        )
        for chain, count, total_ns, saved_bytes in chains.iter_rows()
    ]


def _paired(placed: pl.DataFrame) -> pl.DataFrame:
    """Adds `flows`, whether a row can read what the row before wrote, and `saved`, its bytes twice.

    Both are null where shapes do not tell, as between kernels of one operator.
    """
    last_of_operator = pl.col("operator").ne_missing(pl.col("operator").shift(-1))
    written = pl.when(pl.col("family").is_in(KEEP_SHAPE) & last_of_operator)
    before = placed.with_columns(
        wrote=written.then("out_elements").shift(1), wrote_bytes=written.then("out_bytes").shift(1)
    )
    return before.with_columns(
        flows=pl.col("in_elements").list.contains(pl.col("wrote"))
    ).with_columns(
        flows=pl.when(pl.col("wrote").is_not_null()).then("flows"),
        saved=pl.when(pl.col("flows") & pl.col("wrote").is_not_null()).then(
            2 * pl.col("wrote_bytes")
        ),
    )
