"""One clock for all ranks, from the ends of their collectives.

    clocks = align(recordings, pair(recordings))
    rows = clocks.common(frame)

Members of an all-reduce leave it together, so that how far apart its ends are recorded is how far
apart the clocks are. A median over all instances of a group gives each clock's distance from it,
least squares over all groups (`clock_graph`) the offsets; a drift where the recording is long
enough to show one. Ranks of one host read one clock (`clock_hosts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock_bounds import rank_bounds
from steptally.measure.stragglers.clock_ends import Ends, behind, edge_table, edges_of, ends_of
from steptally.measure.stragglers.clock_graph import (
    Edges,
    Float64s,
    Int64s,
    component_medians,
    components,
    solve,
    solve_robustly,
)
from steptally.measure.stragglers.clock_hosts import ReadClocks, clocks_read
from steptally.measure.stragglers.instances import Pairing
from steptally.measure.stragglers.recording import RankRecording
from steptally.tally.straggler_rows import ClockRow

# Each round refines what the one before leaves over; a third would move nothing but noise.
_ROUNDS = 3
# A drift must rest on so many of a clock's ends, stand out of its error, show in the ends, and be
# one that clocks have.
FEWEST_FOR_DRIFT = 20
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

    The median clock is kept as it is. Ranks that no path of collectives connects with the most
    others have `connected` False: their times compare among themselves at most.
    """
    read = clocks_read(recordings, pairing)
    ends = ends_of(pairing, read)
    offset, drift, edges = _solved(ends)
    own = components(edges)
    bounds = rank_bounds(pairing, read, ends, offset, drift, own)
    whole = _whole_offsets(ends, offset, own)
    used = dict(ends.rows["rank"].value_counts().iter_rows())
    connected = _connected(read, own, used)
    rows = {
        rank: ClockRow(
            rank=rank,
            offset_ns=int(whole[place]),
            drift=float(drift[place]),
            bound_ns=bounds.get(rank),
            collectives=used.get(rank, 0),
            connected=rank in connected,
            reference_ns=int(ends.origins[place]),
        )
        for rank, place in read.place.items()
    }
    return Clocks(rows=rows, warnings=read.warnings)


def _solved(ends: Ends) -> tuple[Float64s, Float64s, Edges]:
    """Offset (ns, of times since the clock's origin) and drift of each clock, and their graph."""
    offset, drift = np.zeros(ends.clocks), np.zeros(ends.clocks)
    for number in range(_ROUNDS):
        table = edge_table(behind(ends, offset, drift, whole=number == 0))
        edges = edges_of(table, ends)
        spread = table["spread"].to_numpy()
        weight = table["count"].to_numpy() / spread**2
        offset = offset + solve_robustly(edges, table["difference"].to_numpy(), weight, spread)
        if number == 0:
            drift = _drift(table, ends)
    return offset, drift, edges


def _drift(table: pl.DataFrame, ends: Ends) -> Float64s:
    """The drift of each clock against its component's median one; 0 where the ends show none.

    Slopes are compared along the groups that tell one; where these do not connect what all groups
    do, how one part drifts against the other is not told, and none is.
    """
    told = table.filter(pl.col("slope").is_not_null())
    edges = edges_of(told, ends)
    own = components(edges)
    if not np.array_equal(own, components(edges_of(table, ends))):
        return np.zeros(ends.clocks)
    weight = 1 / told["slope_error"].to_numpy() ** 2
    found = solve(edges, told["slope"].to_numpy(), weight)
    found = found - component_medians(own, found)
    error = 1 / np.sqrt(np.maximum(np.bincount(edges.clock, weight, ends.clocks), 1e-300))
    span = np.zeros(ends.clocks)
    np.maximum.at(span, edges.clock, told["span"].to_numpy())
    counts = np.bincount(edges.clock, told["count"].to_numpy(), ends.clocks)
    shown = (np.abs(found) > _SURE * error) & (np.abs(found) * span > _LEAST_RISE_NS)
    shown &= (np.abs(found) < MOST_DRIFT) & (counts >= FEWEST_FOR_DRIFT)
    return np.where(shown, found, 0.0)


def _whole_offsets(ends: Ends, offset: Float64s, own: Int64s) -> Int64s:
    """Offsets of times as recorded, in whole nanoseconds; 0 for a component's median clock."""
    whole = np.rint(offset).astype(np.int64) - ends.origins
    order = np.lexsort((whole, own))
    names, starts, counts = np.unique(own[order], return_index=True, return_counts=True)
    medians = whole[order][starts + (counts - 1) // 2]
    return np.asarray(whole - medians[np.searchsorted(names, own)])


def _connected(read: ReadClocks, own: Int64s, used: Mapping[int, int]) -> set[int]:
    """The ranks of the largest component: those with an end, and those that share their clock."""
    known = {place for rank, place in read.place.items() if rank in used} | read.shared
    ranks = {rank: int(own[place]) for rank, place in read.place.items() if place in known}
    if not ranks:
        return set()
    sizes = np.bincount(np.array(list(ranks.values())))
    return {rank for rank, component in ranks.items() if component == sizes.argmax()}
