"""Expert-parallel places that are sent more tokens than the others, and take longer for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.ideal import as_peers, levelled
from steptally.measure.stragglers.own_time import (
    LEAST_EFFECT,
    Effect,
    Floats,
    OwnTimes,
    effect,
    ratio,
)
from steptally.measure.stragglers.recording import RankRecording
from steptally.measure.stragglers.replay import Durations
from steptally.measure.stragglers.whereabouts import place_of

# Tokens that differ by less are what routers do.
LEAST_LOAD = 0.10
# From this load on, own time that is longer at all is put down to it, within noise too.
SURE_LOAD = 1.25


def expert_bytes(recordings: Sequence[RankRecording], members: pl.DataFrame) -> dict[int, int]:
    """The bytes that each rank's experts got and gave back, over all of its all-to-alls (ep).

    Of an all-to-all one side is what the rank's own tokens take, about the same on all ranks, and
    the other what its experts do: the side that differs more over the members.
    """
    rows = [
        one.communications.with_row_index("row").select(
            pl.lit(one.rank, pl.Int64).alias("rank"),
            pl.col("row").cast(pl.Int64),
            "bytes_in",
            "bytes_out",
        )
        for one in recordings
    ]
    exchanges = members.filter(
        (pl.col("collective") == "all-to-all") & pl.col("axis").str.contains("ep")
    )
    told = exchanges.join(pl.concat(rows), on=["rank", "row"], how="inner").drop_nulls(
        ["bytes_in", "bytes_out"]
    )
    spread = {
        side: pl.col(side).max().over("instance") - pl.col(side).min().over("instance")
        for side in ("bytes_in", "bytes_out")
    }
    loaded = pl.when(spread["bytes_in"] > spread["bytes_out"]).then("bytes_in")
    sums = told.select("rank", load=loaded.otherwise("bytes_out")).group_by("rank")
    return dict(sums.agg(pl.col("load").sum()).sort("rank").iter_rows())


def expert_causes(situation: Situation) -> Iterator[Cause]:
    """Places on ep whose experts are sent more than the mean of the others', if they take longer.

    The load is counted, so that no noise is in it; the own time must show it.
    """
    loads, workers = situation.program.expert_bytes, situation.program.workers
    by_place: dict[int, list[int]] = {}
    for rank in loads:
        at = workers[rank].coordinates.get("ep")
        if at is not None:
            by_place.setdefault(at, []).append(rank)
    if len(by_place) < 2:
        return
    load = {at: float(np.mean([loads[rank] for rank in by_place[at]])) for at in by_place}
    for at, ranks in by_place.items():
        others = float(np.mean([load[other] for other in load if other != at]))
        if others and load[at] > (1 + LEAST_LOAD) * others:
            slow = effect(_against_others(situation.own, ranks))
            counted = load[at] > SURE_LOAD * others and slow.factor[0] > 1 + LEAST_EFFECT
            if slow.found[0] or counted:
                yield _cause(situation, at, ranks, load[at] / others, slow)


def _against_others(own: OwnTimes, ranks: list[int]) -> Floats:
    """The mean own time of some ranks over that of all others, by step, as one row."""
    inside = np.isin(own.ranks, ranks)
    own_ns, others = np.mean(own.whole[inside], axis=0), np.mean(own.whole[~inside], axis=0)
    return ratio(own_ns, others)[None]


def _cause(situation: Situation, at: int, ranks: list[int], load: float, slow: Effect) -> Cause:
    own, factor = situation.own, float(slow.factor[0])
    rows = situation.rows_of(ranks)
    fair = situation.fair
    rest = [rank for rank in own.ranks if rank not in ranks]
    return Cause(
        verdict="expert-hot-spot",
        place=place_of(ranks, situation.program.workers),
        rows=rows,
        fair=Durations(
            work=levelled(situation.graph, situation.durations, fair, rows), delay=fair.delay
        ),
        factor=factor,
        # The load is counted: that it is no noise is surer than the time alone makes it.
        least=min(float(slow.least[0]), 1 + LEAST_EFFECT),
        evidence=(
            (
                f"the experts of ep {at} are sent {load:.2f} times the bytes of the others', as "
                "counted in the all-to-alls"
            ),
            f"own work there takes {factor:.2f} times that of the other ranks",
        ),
        after=as_peers(situation.graph, situation.durations, ranks, rest),
    )
