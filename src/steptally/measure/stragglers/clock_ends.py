"""The ends of collectives, as the clocks see them: who left how far behind the others, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock_graph import Edges, Float64s, Int64s, components
from steptally.measure.stragglers.clock_hosts import ReadClocks
from steptally.measure.stragglers.collective_names import LEAVE_APART, LEAVE_TOGETHER
from steptally.measure.stragglers.instances import Pairing

# An edge is never surer than this: times are whole microseconds in some recordings.
LEAST_SPREAD_NS = 500.0
MAD_TO_DEVIATION = 1.4826
# With fewer of a rank's ends than this, those of all-to-alls are better than none.
ENOUGH_ENDS = 20
# A slope needs so many ends: a third of them at each side of the recording.
FEWEST_FOR_SLOPE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """`rows`: instance, rank, its clock's `place`, its group's `edge_group`, and `local`.

    `local` = leave − `origins`[place] is small, so that float64 holds its nanoseconds. `members`
    are those that the instance has, `third` the part of the recording, 0 to 2, by the clock's ends
    in the group.
    """

    rows: pl.DataFrame
    origins: Int64s
    groups: int

    @property
    def clocks(self) -> int:
        """How many clocks there are."""
        return self.origins.size


def ends_of(pairing: Pairing, read: ReadClocks) -> Ends:
    """The ends that clocks may rest on.

    Those of all-reduces, barriers, all-gathers and reduce-scatters; of all-to-alls, whose members
    leave one by one, only where the others are few or do not connect clocks that these do.
    """
    paired = pairing.members.select("instance", "rank", "group_id", "collective", "leave_ns")
    paired = paired.filter(pl.col("collective").is_in((*LEAVE_TOGETHER, *LEAVE_APART)))
    together = pl.col("collective").is_in(LEAVE_TOGETHER)
    tight = _numbered(paired.filter(together), read)
    if len(tight.rows) == len(paired):
        return tight
    loose = _numbered(paired, read)
    fewest = np.bincount(tight.rows["place"].to_numpy(), minlength=read.count).min()
    apart = np.unique(components(_graph(tight))).size
    connects = np.unique(components(_graph(loose))).size < apart
    return loose if connects or fewest < ENOUGH_ENDS else tight


def _numbered(rows: pl.DataFrame, read: ReadClocks) -> Ends:
    tight = pl.col("collective").is_in(LEAVE_TOGETHER)
    rows = rows.with_columns(
        place=pl.col("rank").replace_strict(dict(read.place), return_dtype=pl.Int64),
        edge_group=pl.struct("group_id", tight).rank("dense").cast(pl.Int64) - 1,
    )
    firsts = rows.group_by("place").agg(pl.col("leave_ns").min())
    origins = np.zeros(read.count, dtype=np.int64)
    origins[firsts["place"].to_numpy()] = firsts["leave_ns"].to_numpy()
    local = (rows["leave_ns"].to_numpy() - origins[rows["place"].to_numpy()]).astype(np.float64)
    edge = ("place", "edge_group")
    rows = rows.select(
        "instance",
        "rank",
        *edge,
        local=pl.Series(local),
        members=pl.len().over("instance").cast(pl.Int64),
    ).sort(*edge, "local", "instance")
    third = pl.int_range(pl.len()) * 3 // pl.len()
    return Ends(
        rows=rows.with_columns(third=third.over(*edge)),
        origins=origins,
        groups=rows["edge_group"].n_unique(),
    )


def _graph(ends: Ends) -> Edges:
    pairs = ends.rows.select("place", "edge_group").unique()
    return edges_of(pairs, ends)


def edges_of(table: pl.DataFrame, ends: Ends) -> Edges:
    """The graph of a table with `place` and `edge_group`, an edge for each row."""
    return Edges(
        clock=table["place"].to_numpy(),
        group=table["edge_group"].to_numpy(),
        clocks=ends.clocks,
        groups=ends.groups,
    )


def behind(ends: Ends, offset: Float64s, drift: Float64s, *, whole: bool = False) -> pl.DataFrame:
    """Every end's `behind`: how far it lies behind the median of its instance, in nanoseconds.

    Beside the columns of `Ends.rows`: `skew`, last − first of the instance. `whole` keeps a group's
    instances of the most members only: before clocks are known, a median over fewer is another
    one's.
    """
    place = ends.rows["place"].to_numpy()
    common = ends.rows["local"].to_numpy() * (1 + drift[place]) + offset[place]
    rows = ends.rows.with_columns(common=pl.Series(common))
    if whole:
        rows = rows.filter(pl.col("members") == pl.col("members").max().over("edge_group"))
    by_instance = rows.group_by("instance").agg(
        middle=pl.col("common").median(),
        skew=pl.col("common").max() - pl.col("common").min(),
    )
    return rows.join(by_instance, on="instance", maintain_order="left").with_columns(
        behind=pl.col("common") - pl.col("middle")
    )


def edge_table(rows: pl.DataFrame) -> pl.DataFrame:
    """`behind`'s rows by clock and group: `count`, the median `difference`, its `spread`, `slope`.

    The slope (ns per ns) is that between the medians of the first and the last third in time, and
    `slope_error` its deviation; both null for fewer ends than `FEWEST_FOR_SLOPE`.
    """
    edge = ("place", "edge_group")
    first, last = pl.col("third") == 0, pl.col("third") == 2
    value = pl.col("behind")
    table = rows.group_by(*edge).agg(
        count=pl.len(),
        difference=value.median(),
        spread=_deviation(value).clip(LEAST_SPREAD_NS),
        rise=value.filter(last).median() - value.filter(first).median(),
        run=pl.col("local").filter(last).median() - pl.col("local").filter(first).median(),
        scatter=pl.max_horizontal(_deviation(value.filter(first)), _deviation(value.filter(last))),
        span=pl.col("local").max() - pl.col("local").min(),
    )
    told = (pl.col("count") >= FEWEST_FOR_SLOPE) & (pl.col("run") > 0)
    # Of a median of n/3 values each; 1.25 is what a median loses against a mean.
    error = pl.col("scatter").clip(LEAST_SPREAD_NS) * 1.25 * (6 / pl.col("count")).sqrt()
    return table.with_columns(
        slope=pl.when(told).then(pl.col("rise") / pl.col("run")),
        slope_error=pl.when(told).then(error / pl.col("run")),
    ).sort(*edge)


def _deviation(values: pl.Expr) -> pl.Expr:
    return (values - values.median()).abs().median() * MAD_TO_DEVIATION
