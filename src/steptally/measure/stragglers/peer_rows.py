"""Every rank's own time against its peers', and its stage's against the others': the cells of heat
maps, by operation and by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
    rows: list[PeerRow] = []
    by_operation = list(_by_operation(situation))
    for against, others_of in _others(own).items():
        for operation, times in [(ALL_OWN_WORK, own.whole), *by_operation]:
            rows += _over_steps(situation, against, operation, times, others_of(times))
        if own.whole.size <= MOST_CELLS:
            rows += _each_step(situation, against, others_of(own.whole))
    return rows


def _others(own: OwnTimes) -> Mapping[str, Callable[[Floats], Floats]]:
    """What a rank is held against: its peers' times, and the other stages' where there are any."""
    stages, stage = np.unique(own.stage, return_inverse=True)
    if stages.size < 2:
        return {"peers": own.peers}
    return {"peers": own.peers, "stages": lambda of: own.other_stages(of)[stage]}


def _over_steps(
    situation: Situation, against: str, operation: str, times: Floats, peers: Floats
) -> Iterator[PeerRow]:
    own_ns, peers_ns = nanmedian(times), nanmedian(peers)
    ratios = ratio(own_ns, peers_ns)
    for index, rank in enumerate(situation.own.ranks):
        if not np.isnan(own_ns[index]):
            cell = (own_ns[index], peers_ns[index], ratios[index])
            yield _row(situation, against, rank, operation, None, cell)


def _each_step(situation: Situation, against: str, peers: Floats) -> Iterator[PeerRow]:
    own = situation.own
    ratios = ratio(own.whole, peers)
    for index, rank in enumerate(own.ranks):
        for column, step in enumerate(own.steps):
            if not np.isnan(own.whole[index, column]):
                cell = tuple(values[index, column] for values in (own.whole, peers, ratios))
                yield _row(situation, against, rank, ALL_OWN_WORK, step, cell)


def _row(
    situation: Situation,
    against: str,
    rank: int,
    operation: str,
    step: int | None,
    cell: tuple[float, float, float],
) -> PeerRow:
    own_ns, peers_ns, times = cell
    return PeerRow(
        rank=rank,
        coordinates=situation.program.workers[rank].coordinates,
        operation=operation,
        step=step,
        own_ns=round(own_ns),
        peers_ns=None if np.isnan(peers_ns) else round(peers_ns),
        ratio=None if np.isnan(times) else float(times),
        against=against,
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
