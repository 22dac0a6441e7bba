"""Every rank's own time against its peers', by operation and by step: the cells of a heat map."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from steptally.measure.stragglers.causes import Situation
from steptally.measure.stragglers.own_time import Floats, OwnTimes, nanmedian, ratio
from steptally.tally.straggler_rows import PeerRow

ALL_OWN_WORK = "all own work"
# Of more steps and ranks than this, only the median over the steps is kept.
MOST_CELLS = 50_000


def peer_rows(situation: Situation) -> list[PeerRow]:
    """The median over the steps for each operation, then each step for all own work."""
    own = situation.own
    rows = [*_over_steps(situation, own, own.whole, ALL_OWN_WORK)]
    for operation, times in _by_operation(situation):
        rows += _over_steps(situation, own, times, operation)
    if own.whole.size <= MOST_CELLS:
        rows += _each_step(situation, own)
    return rows


def _over_steps(
    situation: Situation, own: OwnTimes, times: Floats, operation: str
) -> Iterator[PeerRow]:
    peers = own.peers(times)
    own_ns, peers_ns = nanmedian(times), nanmedian(peers)
    ratios = ratio(own_ns, peers_ns)
    for index, rank in enumerate(own.ranks):
        if not np.isnan(own_ns[index]):
            cell = (own_ns[index], peers_ns[index], ratios[index])
            yield _row(situation, rank, operation, None, cell)


def _each_step(situation: Situation, own: OwnTimes) -> Iterator[PeerRow]:
    peers = own.peers(own.whole)
    ratios = ratio(own.whole, peers)
    for index, rank in enumerate(own.ranks):
        for column, step in enumerate(own.steps):
            if not np.isnan(own.whole[index, column]):
                cell = tuple(values[index, column] for values in (own.whole, peers, ratios))
                yield _row(situation, rank, ALL_OWN_WORK, step, cell)


def _row(
    situation: Situation,
    rank: int,
    operation: str,
    step: int | None,
    cell: tuple[float, float, float],
) -> PeerRow:
    own_ns, peers_ns, against = cell
    return PeerRow(
        rank=rank,
        coordinates=situation.program.workers[rank].coordinates,
        operation=operation,
        step=step,
        own_ns=round(own_ns),
        peers_ns=None if np.isnan(peers_ns) else round(peers_ns),
        ratio=None if np.isnan(against) else float(against),
    )


def _by_operation(situation: Situation) -> Iterator[tuple[str, Floats]]:
    """The time of each kind of own work, by rank and step as in `OwnTimes`."""
    own = situation.own
    table = situation.program.operations.with_columns(work=pl.Series(situation.durations.work))
    table = table.filter((pl.col("lane") == "main") & pl.col("instance").is_null())
    sums = table.group_by("operation", "rank", "step").agg(pl.col("work").sum())
    for (operation,), part in sorted(sums.partition_by("operation", as_dict=True).items()):
        times = np.full(own.whole.shape, np.nan)
        row = np.searchsorted(own.ranks, part["rank"].to_numpy())
        column = np.searchsorted(own.steps, part["step"].to_numpy())
        times[row, column] = part["work"].to_numpy()
        if np.nansum(times) > 0:
            yield str(operation), times
