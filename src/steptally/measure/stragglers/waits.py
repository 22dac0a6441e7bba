"""Wait and transfer: how long each rank stood in each collective until the last one was there.

wait = until the last member entered, at most until the rank itself left (a message may be sent
before anyone receives it); transfer = the rest. Exposed are the parts in which the rank computed
nothing. All instances at once, in a few passes over one frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.measure.stragglers.clock import Clocks
from steptally.measure.stragglers.collective_names import MESSAGES
from steptally.measure.stragglers.instances import MEMBERS, Pairing
from steptally.measure.stragglers.recording import RankRecording
from steptally.tally.straggler_rows import CollectiveRow, MemberTime, WaitRow
from steptally.trace.intervals import covered_before

Int64s = npt.NDArray[np.int64]

# `MEMBERS` with times on the common clock, and beside: the instance's `last_entered_ns`,
# `last_rank` (the lowest of those that entered at that moment), whether others entered with it
# `within_bound` of its clock, and the rank's own parts.
WAITS: Mapping[str, pl.DataType] = {
    **MEMBERS,
    "missing": pl.Int64(),
    "last_entered_ns": pl.Int64(),
    "last_rank": pl.Int64(),
    "within_bound": pl.Boolean(),
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
    "exposed_wait_ns": pl.Int64(),
    "exposed_transfer_ns": pl.Int64(),
}


def waits(recordings: Sequence[RankRecording], pairing: Pairing, clocks: Clocks) -> pl.DataFrame:
    """A frame of `WAITS`: every rank in every instance of a step, times on the common clock.

    Instances outside of steps are left out: only clocks rest on them.
    """
    inside = pairing.members.with_columns(
        step=pl.col("step").drop_nulls().first().over("instance")
    ).filter(pl.col("step").is_not_null())
    own = inside.select("enter_ns", "leave_ns")
    rows = clocks.common(inside).hstack(own.rename(lambda name: f"own_{name}"))
    bound = pl.col("rank").replace_strict(clocks.bounds(), default=0, return_dtype=pl.Int64)
    rows = rows.with_columns(bound=bound, last_entered_ns=pl.col("enter_ns").max().over("instance"))
    last = pl.col("enter_ns") == pl.col("last_entered_ns")
    rows = rows.with_columns(
        last_rank=pl.col("rank").filter(last).min().over("instance"),
        last_bound=pl.col("bound").filter(last).max().over("instance"),
        missing=(pl.col("size") - pl.len().over("instance")).fill_null(0).clip(0),
        wait_ns=pl.min_horizontal("last_entered_ns", "leave_ns") - pl.col("enter_ns"),
    )
    near = pl.col("last_entered_ns") - pl.col("enter_ns") <= pl.col("bound") + pl.col("last_bound")
    rows = rows.with_columns(
        within_bound=(near & (pl.col("rank") != pl.col("last_rank"))).any().over("instance"),
        transfer_ns=pl.col("leave_ns") - pl.col("enter_ns") - pl.col("wait_ns"),
    )
    return _exposed(rows, recordings).select(pl.col(n).cast(t) for n, t in WAITS.items())


def last_to_enter(rows: pl.DataFrame) -> dict[int, int]:
    """How many collectives each rank entered last, over `WAITS`; those with all members recorded.

    Ranks that were never last are there with 0. A message makes nobody last: its sender need not
    wait for the receiver.
    """
    counted = rows.filter(~pl.col("collective").is_in(MESSAGES) & (pl.col("missing") == 0))
    counts = counted.filter(pl.col("rank") == pl.col("last_rank"))["rank"].value_counts()
    found = dict(counts.iter_rows())
    return {rank: found.get(rank, 0) for rank in sorted(rows["rank"].unique())}


def wait_rows(rows: pl.DataFrame) -> list[WaitRow]:
    """What each rank spent in each group, over `WAITS`; only instances with all members recorded.

    Where one is missing, the last to enter may be that one: no wait is told.
    """
    return [WaitRow(**row) for row in wait_table(rows).iter_rows(named=True)]


def wait_table(rows: pl.DataFrame, *, by_step: bool = False) -> pl.DataFrame:
    """The columns of `WaitRow`, a row for each rank and group, or for each of a step."""
    whole = rows.filter(pl.col("missing") == 0)
    keys = ("step", "rank", "group", "axis") if by_step else ("rank", "group", "axis")
    last = (pl.col("rank") == pl.col("last_rank")) & ~pl.col("collective").is_in(MESSAGES)
    sums = ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns")
    sums_of = whole.group_by(*keys).agg(
        pl.col(sums).sum(), instances=pl.len(), last_to_enter=last.sum()
    )
    return sums_of.sort(*keys)


def collective_rows(rows: pl.DataFrame, most: int | None = None) -> list[CollectiveRow]:
    """`WAITS` as a row for each instance, in order of time; `most` caps them to the longest waits.

    `last_to_enter` is None where members entered together within the clock's bound, or where a
    member is missing.
    """
    if most is not None and rows["instance"].n_unique() > most:
        longest = rows.group_by("instance").agg(pl.col("wait_ns").sum())
        kept = longest.sort("wait_ns", "instance", descending=[True, False]).head(most)
        rows = rows.filter(pl.col("instance").is_in(kept["instance"].implode()))
    ordered = rows.sort("instance", "rank")
    parts = ordered.partition_by("instance", maintain_order=True)
    return sorted(map(_collective_row, parts), key=lambda row: row.members[0].entered_ns)


def _collective_row(part: pl.DataFrame) -> CollectiveRow:
    first = part.row(0, named=True)
    members = tuple(
        MemberTime(
            rank=rank,
            entered_ns=entered,
            left_ns=left,
            wait_ns=wait,
            transfer_ns=transfer,
            exposed_wait_ns=exposed_wait,
            exposed_transfer_ns=exposed_transfer,
        )
        for rank, entered, left, wait, transfer, exposed_wait, exposed_transfer in part.select(
            "rank", "enter_ns", "leave_ns", "wait_ns", "transfer_ns",
            "exposed_wait_ns", "exposed_transfer_ns",
        ).iter_rows()
    )  # fmt: skip
    entered = [member.entered_ns for member in members]
    left = [member.left_ns for member in members]
    unsure = first["within_bound"] or first["missing"]
    return CollectiveRow(
        step=first["step"],
        group=first["group"],
        axis=first["axis"],
        collective="send" if first["collective"] in MESSAGES else first["collective"],
        sequence=first["sequence"],
        bytes=first["bytes"],
        last_to_enter=None if unsure else first["last_rank"],
        enter_skew_ns=max(entered) - min(entered),
        leave_skew_ns=max(left) - min(left),
        members=members,
        missing=first["missing"],
    )


def _exposed(rows: pl.DataFrame, recordings: Sequence[RankRecording]) -> pl.DataFrame:
    """The parts of wait and transfer that the rank's own compute does not cover."""
    rows = rows.with_row_index("place")
    exposed = np.zeros((len(rows), 2), dtype=np.int64)
    compute = {recording.rank: recording.compute for recording in recordings}
    columns = ("place", "own_enter_ns", "wait_ns", "own_leave_ns")
    for (rank,), own in rows.partition_by("rank", as_dict=True).items():
        place, enter, wait, leave = (own[name].to_numpy() for name in columns)
        between = np.minimum(enter + wait, leave)
        covered = covered_before(compute[rank], np.stack((enter, between, leave)))
        exposed[place] = np.stack(
            (between - enter - covered[1] + covered[0], leave - between - covered[2] + covered[1]),
            axis=1,
        )
    return rows.with_columns(
        exposed_wait_ns=pl.Series(exposed[:, 0]), exposed_transfer_ns=pl.Series(exposed[:, 1])
    )
