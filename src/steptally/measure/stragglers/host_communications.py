"""A CPU rank's collectives over gloo: from the recorder's tags, and gloo's own transfers.

Entered when the rank hands the collective over (the tag begins), left when gloo's last transfer
for it ends. Between the hand-over and the transfer's begin a thread of gloo's must wake up: 0.24 ms
at the median of the recordings in tests/data, 53 ms at most where four ranks share two cores. The
rank itself has done its part by then, and a transfer that begins late says nothing of its compute.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from steptally.measure.group_axes import GroupFacts
from steptally.measure.stragglers.collective_names import MESSAGES, collectives_of
from steptally.measure.stragglers.device_communications import with_groups
from steptally.trace.gloo_signatures import transfer_of
from steptally.trace.schema import UNATTRIBUTED, Trace


def host_communications(
    trace: Trace, facts: Mapping[str, GroupFacts]
) -> tuple[pl.DataFrame, list[str]]:
    """`COMMUNICATIONS` of a CPU rank, and what of them is lost."""
    transfers = trace.events.filter(pl.col("kind") == "transfer")
    tags = _tags(trace, transfers)
    ended = tags.filter(pl.col("leave_ns").is_not_null())
    lost = []
    if len(ended) < len(tags):
        lost.append(f"{len(tags) - len(ended):,} collectives whose end is not recorded")
    alone = _untagged(transfers, tags)
    rows = pl.concat([ended.select(alone.columns), alone])
    return with_groups(rows, facts), lost


def _tags(trace: Trace, transfers: pl.DataFrame) -> pl.DataFrame:
    """A row for each tag; `leave_ns` is null where nothing tells it, `moved` where no transfer."""
    placed = trace.events.select("thread", "step", "group", "kind", "start_ns", "end_ns")
    tags = (
        trace.collectives.with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
        .hstack(placed[trace.collectives["event"]])
        .filter(pl.col("kind") == "collective")
        .sort("start_ns")
    )
    done = transfers.group_by("collective").agg(moved=pl.col("end_ns").max()).drop_nulls()
    labels = pl.col("group_description").fill_null(pl.col("group_name"))
    tags = tags.join(done, left_on="row", right_on="collective", how="left", maintain_order="left")
    tags = tags.with_columns(
        waited=_waited(trace.events, tags),
        collective=pl.Series(
            collectives_of(tags["collective"].fill_null(""), tags["collective"]), dtype=pl.String
        ),
        expected=pl.Series(
            [transfer_of(name or "") for name in tags["collective"]], dtype=pl.String
        ),
        group=pl.coalesce(pl.col("group").replace(UNATTRIBUTED, None), labels),
    )
    message = pl.col("collective").is_in(MESSAGES)
    pair = pl.format("{} {} to {}", "group", "source_rank", "destination_rank")
    return tags.select(
        "step",
        lane=pl.when(message).then(pair).otherwise("group"),
        collective="collective",
        group="group",
        sequence="sequence",
        source_rank="source_rank",
        destination_rank="destination_rank",
        bytes=pl.max_horizontal("bytes_in", "bytes_out"),
        bytes_in="bytes_in",
        bytes_out="bytes_out",
        enter_ns="start_ns",
        leave_ns=pl.coalesce("moved", "waited"),
        moved="moved",
        expected="expected",
    )


def _waited(events: pl.DataFrame, tags: pl.DataFrame) -> pl.Series:
    """The end of the wait for each tag, where its thread hands over one and waits, in turn.

    Where it hands over two in a row, which of them a wait is for is not told.
    """
    waits = events.filter(pl.col("kind") == "wait")
    together = pl.concat(
        [
            tags.select("thread", "start_ns", "row", end_ns=pl.lit(None, pl.Int64)),
            waits.select("thread", "start_ns", row=pl.lit(None, pl.Int64), end_ns="end_ns"),
        ]
    ).sort("thread", "start_ns")
    around = together.with_columns(
        waited=pl.col("end_ns").shift(-1).over("thread"),
        after_tag=pl.col("row").shift(1).over("thread").is_not_null(),
    )
    told = around.filter(pl.col("row").is_not_null() & ~pl.col("after_tag"))
    told = told.select("row", "waited")
    return tags.select("row").join(told, on="row", how="left", maintain_order="left")["waited"]


def _untagged(transfers: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """Transfers that no tag has issued: the recorder's barriers, or all where nothing is tagged.

    Those that some tag may have issued after all are left out: they would count twice.
    """
    open_tags = tags.filter(pl.col("moved").is_null())["expected"].drop_nulls().unique()
    alone = transfers.filter(
        pl.col("collective").is_null() & ~pl.col("name").is_in(open_tags.implode())
    )
    names = alone["name"]
    nothing = {"source_rank": pl.lit(None, pl.Int64), "destination_rank": pl.lit(None, pl.Int64)}
    return alone.select(
        "step",
        lane=pl.lit("gloo"),
        collective=pl.Series(collectives_of(names, [None] * len(names)), dtype=pl.String),
        group=pl.lit(None, pl.String),
        sequence=pl.lit(None, pl.Int64),
        **nothing,
        bytes=pl.lit(None, pl.Int64),
        bytes_in=pl.lit(None, pl.Int64),
        bytes_out=pl.lit(None, pl.Int64),
        enter_ns="start_ns",
        leave_ns="end_ns",
    )
