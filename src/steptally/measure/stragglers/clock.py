"""One clock for all ranks, from the ends of their collectives.

    clocks = align(recordings, pair(recordings))
    rows = clocks.common(frame)

Members of an all-reduce leave it together, so that how far apart its ends are recorded is how far
apart the clocks are. A median over all instances of a group gives each rank's distance from it,
least squares over all groups (`clock_graph`) the offsets; a drift where the recording is long
enough to show one. Ranks of one host have one clock: theirs is measured too, and not corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock_bounds import rank_bounds
from steptally.measure.stragglers.clock_ends import Ends, behind, edge_table, ends_of
from steptally.measure.stragglers.clock_graph import Edges, Float64s, Int64s, components, solve
from steptally.measure.stragglers.clock_hosts import share_hosts
from steptally.measure.stragglers.instances import Pairing
from steptally.measure.stragglers.recording import RankRecording
from steptally.tally.straggler_rows import ClockRow

# Offsets are refined on what the ones before leave over; the third round moves nothing but noise.
_ROUNDS = 3
# A drift must stand out of its error, show in the ends (ns), and be one that clocks have.
_SURE = 4.0
_LEAST_RISE_NS = 2_000.0
MOST_DRIFT = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clock of each rank, and what is to be said of them."""

    rows: Mapping[int, ClockRow]
    warnings: tuple[str, ...] = field(default=())

    def bounds(self) -> dict[int, int]:
        """How far each rank's times may be off, in nanoseconds; 0 where nothing tells."""
        return {rank: row.bound_ns or 0 for rank, row in self.rows.items()}

    def common(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """The frame (with `rank`) with these columns on the common clock: enter_ns, leave_ns."""
        table = pl.DataFrame(
            [(row.rank, row.offset_ns, row.drift, row.reference_ns) for row in self.rows.values()],
            schema={"rank": pl.Int64, "_offset": pl.Int64, "_drift": pl.Float64, "_zero": pl.Int64},
            orient="row",
        )
        placed = frame.join(table, on="rank", how="left", maintain_order="left")
        shifted = [
            pl.col(name)
            + pl.col("_offset")
            + (pl.col("_drift") * (pl.col(name) - pl.col("_zero"))).round().cast(pl.Int64)
            for name in columns or ("enter_ns", "leave_ns")
        ]
        return placed.with_columns(shifted).select(frame.columns)

    def common_times(self, rank: int, own_ns: Int64s) -> Int64s:
        """Times of one rank on the common clock, in an array of any shape."""
        row = self.rows[rank]
        drift = np.round(row.drift * (own_ns - row.reference_ns)).astype(np.int64)
        return np.asarray(own_ns + row.offset_ns + drift)

    def common_time(self, rank: int, own_ns: int) -> int:
        """One time of a rank on the common clock."""
        row = self.rows[rank]
        return own_ns + row.offset_ns + round(row.drift * (own_ns - row.reference_ns))


def raw_clocks(recordings: Sequence[RankRecording]) -> Clocks:
    """Every clock as it was recorded."""
    rows = {
        one.rank: ClockRow(
            rank=one.rank, offset_ns=0, drift=0.0, bound_ns=None, collectives=0, connected=False
        )
        for one in sorted(recordings, key=lambda one: one.rank)
    }
    return Clocks(rows=rows)


def align(recordings: Sequence[RankRecording], pairing: Pairing) -> Clocks:
    """The clocks by which the paired collectives' members leave together.

    The clock of the median rank is kept as it is. Ranks that no path of collectives connects with
    the most others have `connected` False: their times compare among themselves at most.
    """
    ranks = sorted(one.rank for one in recordings)
    ends = ends_of(pairing, ranks)
    if ends.rows.is_empty():
        return share_hosts(recordings, raw_clocks(recordings))
    offset, drift, edges = _solved(ends)
    own = components(edges)
    drift = drift - _medians(own, drift)
    rows = behind(ends, offset, drift)
    bounds = rank_bounds(rows, pairing, ends, offset, drift)
    whole = _whole_offsets(ends, offset, own)
    largest = np.bincount(own).argmax()
    counts = ends.rows["place"].to_numpy()
    used = np.bincount(counts, minlength=len(ranks))
    found = {
        rank: ClockRow(
            rank=rank,
            offset_ns=int(whole[place]),
            drift=float(drift[place]),
            bound_ns=bounds.get(place),
            collectives=int(used[place]),
            connected=bool(own[place] == largest and used[place]),
            reference_ns=int(ends.origins[place]),
        )
        for place, rank in enumerate(ranks)
    }
    return share_hosts(recordings, Clocks(rows=found))


def _solved(ends: Ends) -> tuple[Float64s, Float64s, Edges]:
    """Offset (ns, of times since the rank's origin) and drift of each rank, and their graph."""
    offset, drift = np.zeros(len(ends.ranks)), np.zeros(len(ends.ranks))
    for round_ in range(_ROUNDS):
        table = edge_table(behind(ends, offset, drift, whole=round_ == 0))
        edges = _edges(table, ends)
        weight = (table["count"] / table["spread"] ** 2).to_numpy()
        offset = offset + solve(edges, table["difference"].to_numpy(), weight)
        if round_ == 0:
            drift = _drift(table, edges)
            # The origin of a time stays where it was: a drift also turns the offset's meaning.
    return offset, drift, edges


def _drift(table: pl.DataFrame, edges: Edges) -> Float64s:
    """The drift of each rank where the ends show one, else 0."""
    told = table["slope"].is_not_null().to_numpy()
    if not told.any():
        return np.zeros(edges.ranks)
    slope = table["slope"].fill_null(0.0).to_numpy()
    error = table["slope_error"].fill_null(np.inf).to_numpy()
    weight = np.where(told, 1 / error**2, 0.0)
    found = solve(edges, slope, weight)
    found = found - _medians(components(edges), found)
    surely = np.sqrt(1 / np.maximum(np.bincount(edges.rank, weight, edges.ranks), 1e-300))
    span = np.zeros(edges.ranks)
    np.maximum.at(span, edges.rank, table["span"].to_numpy())
    shown = (np.abs(found) > _SURE * surely) & (np.abs(found) * span > _LEAST_RISE_NS)
    return np.where(shown & (np.abs(found) < MOST_DRIFT), found, 0.0)


def _edges(table: pl.DataFrame, ends: Ends) -> Edges:
    return Edges(
        rank=table["place"].to_numpy(),
        group=table["edge_group"].to_numpy(),
        ranks=len(ends.ranks),
        groups=ends.groups,
    )


def _whole_offsets(ends: Ends, offset: Float64s, own: Int64s) -> Int64s:
    """Offsets of times as recorded, in whole nanoseconds; the median rank's of a component is 0."""
    whole = np.rint(offset).astype(np.int64) - ends.origins
    for component in np.unique(own):
        members = np.flatnonzero(own == component)
        whole[members] -= np.sort(whole[members])[(members.size - 1) // 2]
    return whole


def _medians(own: Int64s, x: Float64s) -> Float64s:
    """For each rank the median of x over its component."""
    result = np.zeros_like(x)
    for component in np.unique(own):
        members = own == component
        result[members] = np.sort(x[members])[(int(members.sum()) - 1) // 2]
    return result
