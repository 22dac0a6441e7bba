"""Groups and links whose transfers take longer than those of their like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import polars as pl

from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.ideal import mended
from steptally.measure.stragglers.own_time import Floats, effect, medians_of_others, ratio
from steptally.measure.stragglers.program import Program
from steptally.measure.stragglers.replay import Booleans, Durations
from steptally.measure.stragglers.whereabouts import place_of


def link_causes(situation: Situation) -> Iterator[Cause]:
    """Groups that move data as others do and take longer, counted from when all have entered.

    Groups are alike where their collectives have the same name and number of members.
    """
    transfers = _transfers(situation.program, situation.durations)
    for (operation, size), alike in transfers.group_by("operation", "size", maintain_order=True):
        groups = alike["members"].unique().sort()
        if len(groups) < 2:
            continue
        times = _by_group_and_step(alike)
        slow = effect(ratio(times, medians_of_others(times)))
        for index in np.flatnonzero(slow.found):
            ranks = [int(rank) for rank in groups[int(index)].split(",")]
            factor = float(slow.factor[index])
            yield Cause(
                verdict="slow-link",
                place=place_of(ranks, situation.program.workers),
                rows=_rows(situation.program, str(operation), ranks),
                fair=_scaled(situation.durations, factor),
                factor=factor,
                least=float(slow.least[index]),
                evidence=(
                    (
                        f"{operation} among ranks {_shown(ranks)} takes {factor:.2f} times as long "
                        f"as among {len(groups) - 1} other groups of {size}, counted from when the "
                        "last member entered"
                    ),
                ),
            )


def with_slow_transfers(causes: Sequence[Cause]) -> list[Cause]:
    """The causes, slow links of which one member is a slow worker taken to that worker.

    What slows a rank down slows the data that it moves too: a rank that is slow by f takes f times
    as long to send, and f times as long to receive. A link that is slower than f² is slow itself:
    it is not mended with the worker.
    """
    links = [cause for cause in causes if cause.verdict == "slow-link"]
    taken = set[int]()
    others = []
    for cause in causes:
        if cause.verdict == "slow-worker":
            ranks = set(cause.place.ranks)
            shared = [link for link in links if not ranks.isdisjoint(link.place.ranks)]
            own = [link for link in shared if _explains(cause, link)]
            taken.update(map(id, own))
            apart = [link for link in shared if link.factor > cause.factor**2]
            cause = reduce(_with_transfers, own, reduce(_without_transfers, apart, cause))
            cause = replace(cause, evidence=(*cause.evidence, *_in_words(own)))
        others.append(cause)
    return [cause for cause in others if id(cause) not in taken]


def _explains(worker: Cause, link: Cause) -> bool:
    """Whether that worker is of the link's ranks, and slow enough to make it as slow as it is."""
    return set(worker.place.ranks) < set(link.place.ranks) and link.factor <= worker.factor**2


def _without_transfers(worker: Cause, link: Cause) -> Cause:
    """The worker's cause, the link's transfers left as they are."""
    return replace(worker, rows=worker.rows & ~link.rows)


def _with_transfers(worker: Cause, link: Cause) -> Cause:
    """The worker's cause, the link's transfers mended with it."""

    def mend(durations: Durations) -> Durations:
        return mended(durations, Durations(work=link.fair.work, delay=durations.delay), link.rows)

    return replace(
        worker,
        rows=worker.rows | link.rows,
        fair=mend(worker.fair),
        after=None if worker.after is None else mend(worker.after),
    )


def _in_words(links: Sequence[Cause]) -> list[str]:
    """That a worker's transfers are slow with it, in one sentence; none where none are."""
    if not links:
        return []
    factors = [f"{factor:.2f}" for factor in sorted(link.factor for link in links)]
    between = " to ".join(dict.fromkeys((factors[0], factors[-1])))
    text = (
        f"it moves data slowly too: transfers that it is part of take {between} times as long as "
        "those of other groups, and are mended with it"
    )
    return [text]


def _by_group_and_step(alike: pl.DataFrame) -> Floats:
    """The transfer times of groups (rows, sorted) and steps (columns), in ns, at least 1."""
    groups, steps = alike["members"].unique().sort(), alike["step"].unique().sort()
    times = np.full((len(groups), len(steps)), np.nan)
    row = np.searchsorted(groups.to_numpy(), alike["members"].to_numpy())
    column = np.searchsorted(steps.to_numpy(), alike["step"].to_numpy())
    times[row, column] = np.maximum(alike["transfer"].to_numpy(), 1)
    return times


def _shown(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def _transfers(program: Program, durations: Durations) -> pl.DataFrame:
    """Each group's transfer time per step and kind of collective: `operation, size, members, step`.

    The first to leave tells the transfer: a later one may have been held up by itself.
    """
    table = program.operations.with_columns(work=pl.Series(durations.work)).filter(
        pl.col("instance").is_not_null()
    )
    instances = table.group_by("instance", "step").agg(
        operation=pl.col("operation").sort_by("rank").first(),
        members=pl.col("rank").unique().sort().cast(pl.String).str.join(","),
        size=pl.col("rank").n_unique(),
        transfer=pl.col("work").min(),
    )
    several = instances.filter(pl.col("size") > 1)
    keys = ["operation", "size", "members", "step"]
    return several.group_by(keys).agg(pl.col("transfer").sum()).sort(keys)


def _rows(program: Program, operation: str, ranks: list[int]) -> Booleans:
    """The members of the instances of one kind whose members are exactly `ranks`."""
    table = program.operations.with_row_index("row").filter(pl.col("instance").is_not_null())
    own = table.group_by("instance").agg(
        "row",
        first=pl.col("operation").sort_by("rank").first(),
        inside=pl.col("rank").is_in(ranks).all() & (pl.col("rank").n_unique() == len(ranks)),
    )
    chosen = own.filter(pl.col("inside") & (pl.col("first") == operation))["row"].explode()
    rows = np.zeros(len(program.operations), dtype=bool)
    rows[chosen.to_numpy()] = True
    return rows


def _scaled(durations: Durations, factor: float) -> Durations:
    return Durations(work=np.round(durations.work / factor).astype(np.int64), delay=durations.delay)
