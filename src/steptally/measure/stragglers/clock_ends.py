"""The ends of collectives, as the clocks see them: who left how far behind the others, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock_graph import Edges, Float64s, Int64s, components
from steptally.measure.stragglers.collective_names import LEAVE_APART, LEAVE_TOGETHER
from steptally.measure.stragglers.instances import Pairing

# An edge is never surer than this: times are whole microseconds in some recordings.
LEAST_SPREAD_NS = 500.0
MAD_TO_DEVIATION = 1.4826
# With fewer of a rank's ends than this, those of all-to-alls are better than none.
ENOUGH_ENDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """`rows`: instance, rank's `place`, group's `edge_group`, `local` = leave − `origins`[place].

    `ranks` are in order of place. `local` is small, so that float64 holds its nanoseconds.
    """

    rows: pl.DataFrame
    ranks: list[int]
    origins: Int64s
    groups: int


def ends_of(pairing: Pairing, ranks: list[int]) -> Ends:
    """The ends that clocks may rest on, for these ranks (ascending).

    Those of all-reduces, barriers, all-gathers and reduce-scatters; of all-to-alls, whose members
    leave one by one, only where the others are few or do not connect ranks that these do.
    """
    paired = pairing.members.select("instance", "rank", "group_id", "collective", "leave_ns")
    tight = _numbered(paired.filter(pl.col("collective").is_in(LEAVE_TOGETHER)), ranks)
    both = (*LEAVE_TOGETHER, *LEAVE_APART)
    loose = _numbered(paired.filter(pl.col("collective").is_in(both)), ranks)
    fewest = np.bincount(tight.rows["place"].to_numpy(), minlength=len(ranks)).min()
    apart = np.unique(components(_graph(tight))).size
    connects = np.unique(components(_graph(loose))).size < apart
    return loose if connects or fewest < ENOUGH_ENDS else tight


def _numbered(rows: pl.DataFrame, ranks: list[int]) -> Ends:
    places = {rank: place for place, rank in enumerate(ranks)}
    apart = pl.struct("group_id", pl.col("collective").is_in(LEAVE_TOGETHER))
    rows = rows.with_columns(
        place=pl.col("rank").replace_strict(places, return_dtype=pl.Int64),
        edge_group=apart.rank("dense").cast(pl.Int64) - 1,
    )
    firsts = rows.group_by("place").agg(pl.col("leave_ns").min())
    origins = np.zeros(len(ranks), dtype=np.int64)
    origins[firsts["place"].to_numpy()] = firsts["leave_ns"].to_numpy()
    local = rows["leave_ns"].to_numpy() - origins[rows["place"].to_numpy()]
    return Ends(
        rows=rows.select("instance", "place", "edge_group").with_columns(
            local=pl.Series(local.astype(np.float64))
        ),
        ranks=ranks,
        origins=origins,
        groups=rows["edge_group"].n_unique(),
    )


def _graph(ends: Ends) -> Edges:
    pairs = ends.rows.select("place", "edge_group").unique()
    return Edges(
        rank=pairs["place"].to_numpy(),
        group=pairs["edge_group"].to_numpy(),
        ranks=len(ends.ranks),
        groups=ends.groups,
    )


def behind(ends: Ends, offset: Float64s, drift: Float64s, *, whole: bool = False) -> pl.DataFrame:
    """Every end's `behind`: how far it lies behind the median of its instance, in nanoseconds.

    With columns `place`, `edge_group`, `local`, `skew` (last − first of the instance) and
    `members`. `whole` keeps a group's instances of the most members only: before clocks are known,
    a median over fewer is another one's.
    """
    place = ends.rows["place"].to_numpy()
    common = ends.rows["local"].to_numpy() * (1 + drift[place]) + offset[place]
    rows = ends.rows.with_columns(common=pl.Series(common))
    rows = rows.with_columns(members=pl.len().over("instance"))
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
    """`behind`'s rows by rank and group: `count`, the median `difference`, its `spread`, `slope`.

    The slope (ns per ns) is that between the medians of the first and the last third in time, and
    `slope_error` its deviation; both null for fewer than six.
    """
    edge = ("place", "edge_group")
    third = (pl.col("local").rank("ordinal") - 1) * 3 // pl.len()
    rows = rows.with_columns(third=third.over(*edge))
    first, last = pl.col("third") == 0, pl.col("third") == 2
    table = rows.group_by(*edge).agg(
        count=pl.len(),
        difference=pl.col("behind").median(),
        spread=(pl.col("behind") - pl.col("behind").median()).abs().median() * MAD_TO_DEVIATION,
        rise=pl.col("behind").filter(last).median() - pl.col("behind").filter(first).median(),
        run=pl.col("local").filter(last).median() - pl.col("local").filter(first).median(),
        scatter=(
            pl.col("behind").filter(last) - pl.col("behind").filter(last).median()
        ).abs().median() * MAD_TO_DEVIATION,
        span=pl.col("local").max() - pl.col("local").min(),
    )  # fmt: skip
    told = (pl.col("count") >= 6) & (pl.col("run") > 0)
    error = pl.col("scatter").clip(LEAST_SPREAD_NS) * 1.25 * (6 / pl.col("count")).sqrt()
    return table.with_columns(
        slope=pl.when(told).then(pl.col("rise") / pl.col("run")),
        slope_error=pl.when(told).then(error / pl.col("run")),
        spread=pl.col("spread").clip(LEAST_SPREAD_NS),
    ).sort(*edge)
