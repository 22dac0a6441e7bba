"""The order of a rank's operations: what each must wait for on its own rank.

Told from the recording: an operation waits for the one before it in its lane, for the rank's own
work that had ended when it was issued, and work waits for what it needs of the others.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.stragglers.program import Integers

# Times written as 32-bit floats of seconds are coarse: 1 ms in a run of hours.
TOLERANCE_NS = 1_000_000


def program_order(table: pl.DataFrame) -> tuple[Integers, Integers]:
    """Rows that come before rows, of a table with `rank, step, lane, operation, position, start_ns,
    end_ns`, sorted by step, rank and start.

    Lanes: `main` is own work, `collectives` is everybody's, all others are of messages.
    """
    numbered = table.with_row_index("row")
    edges = [
        _in_lane(numbered),
        _after_work(numbered),
        _after_receiving(numbered),
        _after_collectives(numbered),
    ]
    pairs = np.unique(np.concatenate(edges), axis=0)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def _in_lane(table: pl.DataFrame) -> Integers:
    """Each operation after the one before it in its lane."""
    return _pairs(
        table.with_columns(before=pl.col("row").shift(1).over("step", "rank", "lane")),
    )


def _after_work(table: pl.DataFrame) -> Integers:
    """Messages and collectives after the own work that had ended when they were issued."""
    work = table.filter(pl.col("lane") == "main").select(
        "step", "rank", before="row", reached=_ended()
    )
    issued = table.filter(pl.col("lane") != "main").sort("start_ns")
    found = issued.join_asof(
        work.sort("reached"),
        left_on="start_ns",
        right_on="reached",
        by=["step", "rank"],
        strategy="backward",
        check_sortedness=False,
    )
    return _pairs(found)


def _after_receiving(table: pl.DataFrame) -> Integers:
    """The k-th pass after the k-th receive of its kind, counted from the last.

    From the last, as the first stages of some recordings lack a receive that others have.
    """
    from_end = pl.len().over("step", "rank", "operation") - pl.col("position")
    counted = table.with_columns(turn=from_end)
    keys = ["step", "rank", "phase", "turn"]
    receives = counted.filter(pl.col("operation").str.ends_with("-recv"))
    receives = receives.filter(pl.col("instance").is_not_null()).select(*keys, before="row")
    passes = counted.filter(pl.col("operation").str.ends_with("-compute"))
    return _pairs(passes.join(receives, on=keys, how="inner"))


def _after_collectives(table: pl.DataFrame) -> Integers:
    """Own work after the collective that ended last before it, if it can have waited for it.

    It can where the collective ended after the own work before: the rank then stood still.
    """
    collectives = table.filter(pl.col("lane") == "collectives").select(
        "step", "rank", before="row", reached=_ended(), left="end_ns"
    )
    work = table.filter(pl.col("lane") == "main").with_columns(
        previous=pl.col("end_ns").shift(1).over("step", "rank").fill_null(0)
    )
    found = work.sort("start_ns").join_asof(
        collectives.sort("reached"),
        left_on="start_ns",
        right_on="reached",
        by=["step", "rank"],
        strategy="backward",
        check_sortedness=False,
    )
    return _pairs(found.filter(pl.col("left") > pl.col("previous") - TOLERANCE_NS))


def _ended() -> pl.Expr:
    """When an operation counts as ended: a little early, for coarse times, never before half."""
    half = (pl.col("end_ns") - pl.col("start_ns")) // 2
    return pl.col("end_ns") - pl.min_horizontal(half, pl.lit(TOLERANCE_NS))


def _pairs(table: pl.DataFrame) -> Integers:
    """The columns `before` and `row` as an array, rows without a `before` left out."""
    told = table.filter(pl.col("before").is_not_null())
    return told.select("before", "row").to_numpy().astype(np.int64)
