"""How far an aligned clock may be off: from what the ends leave over, and what they cannot show."""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock_ends import Ends, edge_table
from steptally.measure.stragglers.clock_graph import Float64s
from steptally.measure.stragglers.collective_names import LEAVE_APART, LEAVE_TOGETHER
from steptally.measure.stragglers.instances import Pairing

# 99 % of medians of n lie within this many √n places of the middle.
_PLACES = 1.29
# From so few ends no distribution can be told: then the shortest transfer bounds the clock.
_FEW = 5


def rank_bounds(
    rows: pl.DataFrame, pairing: Pairing, ends: Ends, offset: Float64s, drift: Float64s
) -> dict[int, int]:
    """The bound of each rank's place, in nanoseconds, for those with an end.

    The largest of: the 99 % range of the median of its distances from the others' ends, the
    typical skew of the instances it took part in, and the unit of the recorded times; for fewer
    than five ends also the shortest time between the last enter and an end, since no clock is
    further off than that. On top of it the trend that is left over the recording.
    """
    unit = 1_000 if (ends.rows["local"] % 1_000 == 0).all() else 1
    shortest = _shortest_transfers(pairing, ends, offset, drift)
    trends = _trends(rows)
    bounds = {}
    for (place,), own in rows.partition_by("place", as_dict=True).items():
        alone = own["behind"] * own["members"] / (own["members"] - 1)
        parts = [_median_range(alone.sort().to_numpy()), float(own["skew"].median()), unit]  # type: ignore[arg-type]
        if len(own) < _FEW:
            parts.append(shortest.get(place, 0.0))
        bounds[place] = int(np.ceil(max(parts) + trends.get(place, 0.0)))
    return bounds


def _median_range(ordered: Float64s) -> float:
    """The farther end of the median's range, from 0, for values in order."""
    middle, reach = (ordered.size - 1) / 2, _PLACES * np.sqrt(ordered.size)
    low = int(max(np.floor(middle - reach), 0))
    high = int(min(np.ceil(middle + reach), ordered.size - 1))
    return float(max(abs(ordered[low]), abs(ordered[high])))


def _trends(rows: pl.DataFrame) -> dict[int, float]:
    """Half of what each rank's distances still rise over its recording, by its surest group."""
    table = edge_table(rows).filter(pl.col("slope").is_not_null())
    surest = table.sort("place", "slope_error").unique("place", keep="first", maintain_order=True)
    rise = (pl.col("slope").abs() + pl.col("slope_error")) * pl.col("span") / 2
    return dict(surest.select("place", rise).iter_rows())


def _shortest_transfers(
    pairing: Pairing, ends: Ends, offset: Float64s, drift: Float64s
) -> dict[int, float]:
    """The least time from an instance's last enter to each rank's leave, by place."""
    places = {rank: place for place, rank in enumerate(ends.ranks)}
    kinds = (*LEAVE_TOGETHER, *LEAVE_APART)
    rows = pairing.members.filter(pl.col("collective").is_in(kinds))
    place = rows["rank"].replace_strict(places, return_dtype=pl.Int64).to_numpy()
    times = {}
    for name in ("enter_ns", "leave_ns"):
        local = (rows[name].to_numpy() - ends.origins[place]).astype(np.float64)
        times[name] = pl.Series(local * (1 + drift[place]) + offset[place])
    rows = rows.select("instance", place=pl.Series(place)).with_columns(**times)
    after = pl.col("leave_ns") - pl.col("enter_ns").max().over("instance")
    least = rows.with_columns(after=after).group_by("place").agg(pl.col("after").min().clip(0))
    return dict(least.iter_rows())
