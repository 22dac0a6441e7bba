"""How far an aligned clock may be off: from what the ends leave over, and what they cannot show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock_ends import Ends, behind, edge_table
from steptally.measure.stragglers.clock_graph import Float64s, Int64s
from steptally.measure.stragglers.clock_hosts import ONE_CLOCK_NS, ReadClocks
from steptally.measure.stragglers.collective_names import LEAVE_APART, LEAVE_TOGETHER
from steptally.measure.stragglers.instances import Pairing

# 99 % of the medians of n values lie within this many √n places of the middle one.
_PLACES = 1.29
# From so few ends no distribution can be told: then the shortest transfer bounds the clock.
_FEW = 5


def rank_bounds(
    pairing: Pairing,
    read: ReadClocks,
    ends: Ends,
    offset: Float64s,
    drift: Float64s,
    own: Int64s,
) -> dict[int, int]:
    """The bound of each rank in nanoseconds, where its clock has an end, or is a host's.

    Of a clock, the largest of: the 99 % range of the median of its distances from the others'
    ends, the typical skew of the instances it took part in, and the unit of the recorded times;
    for fewer than five ends also its shortest transfer, since members leave no further apart than
    the data take. On top of it half of the trend that is left over the recording, or that noise
    may hide. The only clock of a component is exact. Where ranks share a clock, what a rank's ends
    surely lie behind or before the others' adds to it, up to the rank's shortest transfer.
    """
    rows = behind(ends, offset, drift).filter(pl.col("members") > 1)
    rows = rows.with_columns(
        # Of two members each lies at half the distance from their median.
        pl.col("behind") * pl.col("members") / (pl.col("members") - 1)
    )
    shortest = _shortest_transfers(pairing, read, ends, offset, drift)
    clocks = _clock_bounds(rows, read, ends, shortest)
    alone = np.bincount(own, minlength=own.size)[own] == 1
    by_rank = rows.partition_by("rank", as_dict=True)
    bounds = {}
    for rank, place in read.place.items():
        common = 0.0 if alone[place] else clocks.get(place)
        if place in read.shared:
            parts = by_rank.get((rank,))
            apart = 0.0 if parts is None else _surely_apart(_ordered(parts))
            apart = min(apart, shortest.get(rank, apart))
            bounds[rank] = int(np.ceil(max(ONE_CLOCK_NS, apart) + (common or 0.0)))
        elif common is not None and place in clocks:
            bounds[rank] = int(np.ceil(clocks[place]))
    return bounds


def _clock_bounds(
    rows: pl.DataFrame, read: ReadClocks, ends: Ends, shortest: Mapping[int, float]
) -> dict[int, float]:
    unit = 1_000 if (ends.rows["local"] % 1_000 == 0).all() else 1
    least: dict[int, float] = {}
    for rank, transfer in shortest.items():
        place = read.place[rank]
        least[place] = min(transfer, least.get(place, transfer))
    trends = _trends(rows)
    bounds = {}
    for (place,), part in rows.partition_by("place", as_dict=True).items():
        low, high = _median_range(_ordered(part))
        parts = [abs(low), abs(high), float(np.median(part["skew"].to_numpy())), unit]
        if len(part) < _FEW:
            parts.append(least.get(place, 0.0))
        bounds[place] = max(parts) + trends.get(place, 0.0)
    return bounds


def _ordered(rows: pl.DataFrame) -> Float64s:
    return np.sort(rows["behind"].to_numpy())


def _median_range(ordered: Float64s) -> tuple[float, float]:
    """Between which of these values, in order, the median of their distribution lies."""
    middle, reach = (ordered.size - 1) / 2, _PLACES * np.sqrt(ordered.size)
    low = int(max(np.floor(middle - reach), 0))
    high = int(min(np.ceil(middle + reach), ordered.size - 1))
    return float(ordered[low]), float(ordered[high])


def _surely_apart(ordered: Float64s) -> float:
    """How far the median lies from 0 at least, with few values not at all."""
    low, high = _median_range(ordered)
    return 0.0 if ordered.size < _FEW else max(low, -high, 0.0)


def _trends(rows: pl.DataFrame) -> Mapping[int, float]:
    """Half of what each clock's distances surely rise still, and of what may be hidden."""
    table = edge_table(rows).filter(pl.col("slope").is_not_null())
    half = pl.col("span") / 2
    surely = (pl.col("slope").abs() - 2 * pl.col("slope_error")).clip(0) * half
    hidden = pl.col("slope_error") * half
    return dict(table.group_by("place").agg(surely.max() + hidden.min()).iter_rows())


def _shortest_transfers(
    pairing: Pairing, read: ReadClocks, ends: Ends, offset: Float64s, drift: Float64s
) -> dict[int, float]:
    """The least time from an instance's last enter to each rank's leave."""
    kinds = (*LEAVE_TOGETHER, *LEAVE_APART)
    rows = pairing.members.filter(pl.col("collective").is_in(kinds))
    place = rows["rank"].replace_strict(dict(read.place), return_dtype=pl.Int64).to_numpy()
    times = {}
    for name in ("enter_ns", "leave_ns"):
        local = (rows[name].to_numpy() - ends.origins[place]).astype(np.float64)
        times[name] = pl.Series(local * (1 + drift[place]) + offset[place])
    rows = rows.select("instance", "rank").with_columns(**times)
    after = pl.col("leave_ns") - pl.col("enter_ns").max().over("instance")
    least = rows.with_columns(after=after).group_by("rank").agg(pl.col("after").min().clip(0))
    return dict(least.iter_rows())
