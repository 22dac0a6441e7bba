"""Pairs the k-th collective of a group over its members: candidates, before clocks are known.

By the number that was recorded (the recorder's tags, NCCL's sequence); else by order within the
group and step, where all members have the same collectives in it; where no group is known, over
all ranks that have the same ones, stream by stream. Messages by the pair of ranks. What order
alone has paired is only believed after a test of the ends (`pairing_support`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from steptally.measure.stragglers.collective_names import MESSAGES
from steptally.measure.stragglers.recording import COMMUNICATIONS, RankRecording
from steptally.tally.ranges import number_ranges
from steptally.trace.schema import UNATTRIBUTED

# One row for each rank in each instance, by instance and rank. `instance` counts from 0 in order
# of the earliest member's enter on its own clock; `row` is that of the rank's `communications`.
# `group_id` tells groups of one name apart by their members; `by_order` whether order has paired
# it. `size` is how many ranks take part, null where that is not known; `sequence` counts within
# the group (and the pair of ranks).
MEMBERS: Mapping[str, pl.DataType] = {
    "instance": pl.Int64(),
    "rank": pl.Int64(),
    "row": pl.Int64(),
    "group_id": pl.Int64(),
    "by_order": pl.Boolean(),
    "step": pl.Int64(),
    "group": pl.String(),
    "axis": pl.String(),
    "size": pl.Int64(),
    "collective": pl.String(),
    "sequence": pl.Int64(),
    "bytes": pl.Int64(),
    "enter_ns": pl.Int64(),
    "leave_ns": pl.Int64(),
}
_NO_STEP = -1
_KEY = ("group_id", "source", "destination", "key_step", "sequence", "occurrence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Collectives of a group that are not paired, and why; `step` None for all steps."""

    group: str
    ranks: tuple[int, ...]
    reason: str
    step: int | None = None

    def sentence(self) -> str:
        """The refusal in words: `collectives of tp (ranks 0-3) in step 5 are not paired: …`."""
        place = "" if self.step is None else f" in step {self.step}"
        ranks = f"rank{'s' * (len(self.ranks) > 1)} {number_ranges(self.ranks)}"
        return f"collectives of {self.group} ({ranks}){place} are not paired: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """`members` is a frame of `MEMBERS`: instances of two members at least, on own clocks."""

    members: pl.DataFrame
    refused: tuple[Refusal, ...] = ()

    @property
    def instances(self) -> int:
        """How many collectives and messages are paired."""
        return self.members["instance"].n_unique()


def pair(recordings: Sequence[RankRecording]) -> Pairing:
    """Every instance that at least two of its members recorded.

    A rank that a group has, and whose collective is not recorded, is missing from its instance.
    """
    rows = _all_rows(recordings)
    told = pl.col("group").is_not_null()
    numbered = rows.filter(told & pl.col("sequence").is_not_null())
    ordered, uneven = _same_collectives(rows.filter(told & pl.col("sequence").is_null()))
    nameless, odd = _without_groups(rows.filter(~told))
    together = pl.concat(
        [
            _occurrences(numbered).with_columns(by_order=pl.lit(False), key_step=pl.lit(_NO_STEP)),
            ordered.with_columns(by_order=pl.lit(True)),
            nameless.with_columns(by_order=pl.lit(True)),
        ],
        how="diagonal_relaxed",
    )
    members = numbered_instances(together, _KEY)
    alone = _recorded_alone(together, members, {one.rank for one in recordings})
    return Pairing(members=members, refused=(*uneven, *odd, *alone))


def _recorded_alone(rows: pl.DataFrame, members: pl.DataFrame, read: set[int]) -> Iterator[Refusal]:
    """Collectives that one rank alone recorded, by group; those outside of steps are of no use."""
    if len(rows) == len(members):
        return
    inside = rows.filter(pl.col("step").is_not_null()).with_columns(pl.col("row").cast(pl.Int64))
    left = inside.join(members, on=["rank", "row"], how="anti")
    table = left.group_by("group").agg(pl.col("rank").unique().sort(), count=pl.len())
    for group, ranks, count in table.sort("group").select("group", "rank", "count").iter_rows():
        reason = f"no other of the {len(read):,} ranks read has recorded {count:,} of them"
        yield Refusal(group=group, ranks=tuple(ranks), reason=reason)


def numbered_instances(rows: pl.DataFrame, key: Iterable[str]) -> pl.DataFrame:
    """`MEMBERS` of the rows: those of one key are an instance, if they are two ranks or more."""
    first = rows.group_by(*key).agg(
        begun=pl.col("enter_ns").min(),
        places=pl.col("rank").n_unique(),
        lowest=pl.col("rank").min(),
    )
    kept = first.filter(pl.col("places") > 1).sort("begun", "lowest", *key)
    kept = kept.drop("begun", "places", "lowest").with_row_index("instance")
    members = rows.join(kept, on=list(key), how="inner", nulls_equal=True)
    typed = members.select(pl.col(name).cast(kind) for name, kind in MEMBERS.items())
    return typed.sort("instance", "rank")


def _all_rows(recordings: Sequence[RankRecording]) -> pl.DataFrame:
    """All ranks' communications, with `rank`, `row`, `group_id`, `size` and the ends of messages.

    By rank and row, so that rows may be counted in their order. Groups of one member are left out,
    and copies to another device: nobody waits there.
    """
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    schema = {**COMMUNICATIONS, "row": pl.UInt32(), "rank": pl.Int64(), "group_id": pl.Int64()}
    frames = [pl.DataFrame(schema=schema)]
    for recording in sorted(recordings, key=lambda one: one.rank):
        rows = recording.communications
        each = rows.select("group", "members").unique(maintain_order=True)
        numbers = [
            None if group is None else known.setdefault((group, tuple(members or ())), len(known))
            for group, members in each.iter_rows()
        ]
        each = each.with_columns(pl.Series("group_id", numbers, dtype=pl.Int64))
        frames.append(
            rows.with_row_index("row")
            .join(each, on=["group", "members"], how="left", nulls_equal=True)
            .with_columns(rank=pl.lit(recording.rank, pl.Int64))
            .select(*schema)
        )
    message = pl.col("collective").is_in(MESSAGES)
    ends = {"source": "source_rank", "destination": "destination_rank"}
    return (
        pl.concat(frames)
        .with_columns(size=pl.when(message).then(2).otherwise(pl.col("members").list.len()))
        .filter(pl.col("size").is_null() | (pl.col("size") > 1))
        .filter(pl.col("collective") != "copy")
        .with_columns(pl.when(message).then(told).alias(name) for name, told in ends.items())
        .drop("members", "source_rank", "destination_rank")
    )


def _occurrences(rows: pl.DataFrame) -> pl.DataFrame:
    """Several kernels of one number (a coalesced call) are told apart by their order."""
    within = ("rank", "group_id", "source", "destination", "sequence", "collective")
    repeated = rows.select(within).is_duplicated()
    count = pl.int_range(pl.len()).over(*within)
    once = rows.filter(~repeated).with_columns(occurrence=pl.lit(0, pl.Int64))
    return pl.concat([once, rows.filter(repeated).with_columns(occurrence=count)])


def _same_collectives(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[Refusal]]:
    """Rows of groups numbered by order within a step, where all members have the same ones."""
    places = ("group_id", "source", "destination", "key_step")
    rows = rows.with_columns(key_step=pl.col("step").fill_null(_NO_STEP))
    order = pl.int_range(pl.len()).over("rank", *places)
    rows = rows.with_columns(sequence=order, occurrence=pl.lit(0))
    kind = pl.when(pl.col("source").is_null()).then("collective").otherwise(pl.lit("message"))
    lists = (
        rows.sort("rank", "row")
        .group_by("rank", "group", *places, maintain_order=True)
        .agg(
            count=pl.len(),
            kinds=kind.str.join(" "),
            untold=(pl.col("collective") == "send-recv").any(),
        )
    )
    same = lists.group_by(*places).agg(
        pl.col("kinds").n_unique(),
        pl.col("count").min().alias("fewest"),
        pl.col("count").max().alias("most"),
        pl.col("rank").sort(),
        pl.col("rank").sort_by("count").first().alias("least"),
        pl.col("group").first(),
        pl.col("untold").any(),
    )
    uneven = same.filter(pl.col("kinds") > 1).sort(*places)
    refused = [_uneven(row) for row in uneven.iter_rows(named=True)]
    return rows.join(uneven.select(places), on=places, how="anti", nulls_equal=True), refused


def _uneven(row: Mapping[str, object]) -> Refusal:
    fewest, most, step = row["fewest"], row["most"], row["key_step"]
    reason = "their members recorded different ones: records are lost"
    if row["untold"]:
        reason = "their SendRecv kernels do not say whom they join, and members differ in them"
    elif fewest != most:
        reason = f"rank {row['least']} recorded {fewest}, another rank {most}: records are lost"
    if step == _NO_STEP:
        reason += " (outside of the recorded steps)"
    return Refusal(
        group=str(row["group"]),
        ranks=tuple(row["rank"]),  # type: ignore[arg-type]
        reason=reason,
        step=None if step == _NO_STEP else int(step),  # type: ignore[call-overload]
    )


def _without_groups(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[Refusal]]:
    """Rows whose group nothing tells: over the ranks with the same collectives in a stream.

    Such ranks become a group of its own for each stream. A rank that is alone is refused; it may
    have lost a record, so that it counts as a missing member of the others' groups.
    """
    if rows.is_empty():
        return _empty_ordered(rows), []
    lane = ("key_step", "lane_number")
    rows = rows.with_columns(
        key_step=pl.col("step").fill_null(_NO_STEP), lane_number=_lane_numbers(rows)
    )
    lists = rows.group_by("rank", *lane, maintain_order=True).agg(
        kinds=pl.col("collective").str.join(" "), count=pl.len()
    )
    classes = lists.group_by(*lane, "kinds").agg(
        ranks=pl.col("rank").sort(), size=pl.len(), count=pl.col("count").first()
    )
    classes = classes.with_columns(
        among=pl.col("size").sum().over(*lane), odd=(pl.col("size") == 1).sum().over(*lane)
    )
    alone = classes.filter((pl.col("size") == 1) & (pl.col("among") > 1)).explode("ranks")
    refused = [
        _alone(rank, step, count)
        for rank, step, count in alone.sort(*lane, "ranks")
        .select("ranks", "key_step", "count")
        .rows()
    ]
    classes = classes.filter(pl.col("size") > 1)
    streams = [(number, *ranks) for number, ranks in classes.select("lane_number", "ranks").rows()]
    numbers = {stream: -1 - place for place, stream in enumerate(sorted(set(streams)))}
    places = classes.with_columns(
        pl.Series("group_id", [numbers[stream] for stream in streams], dtype=pl.Int64)
    ).explode("ranks")
    size = pl.col("size") + pl.col("odd")
    places = places.select("group_id", size.alias("size"), *lane, rank="ranks")
    order = pl.int_range(pl.len()).over("rank", *lane)
    paired = (
        rows.with_columns(occurrence=pl.lit(0), sequence=order)
        .drop("group_id", "size")
        .join(places, on=["rank", *lane], how="inner")
        .drop("lane_number")
        .with_columns(group=pl.lit(UNATTRIBUTED))
    )
    return paired, refused


def _lane_numbers(rows: pl.DataFrame) -> pl.Expr:
    """Streams have other numbers on other ranks: those of a rank are counted in their order."""
    stream = pl.col("lane").str.split(":").list.last()
    numbered = stream.cast(pl.Int64, strict=False).fill_null(0)
    return numbered.rank("dense").over("rank").cast(pl.Int64)


def _alone(rank: int, step: int, count: int) -> Refusal:
    things = f"{count} collective{'s' * (count > 1)}"
    reason = f"no group is recorded, and no other rank has the same {things} in a stream"
    told = None if step == _NO_STEP else step
    return Refusal(group=UNATTRIBUTED, ranks=(rank,), reason=reason, step=told)


def _empty_ordered(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(key_step=pl.lit(None, pl.Int64), occurrence=pl.lit(None, pl.Int64))
