"""Groups and links whose transfers take longer than those of their like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from steptally.measure.stragglers.causes import Cause
from steptally.measure.stragglers.own_time import effect
from steptally.measure.stragglers.places import place_of
from steptally.measure.stragglers.program import Program
from steptally.measure.stragglers.replay import Durations


def link_causes(program: Program, durations: Durations) -> Iterator[Cause]:
    """Groups that move the same data as others and take longer, after all have entered.

    Groups are alike where their collectives have the same name and number of members.
    """
    transfers = _transfers(program, durations)
    for (operation, size), alike in transfers.group_by("operation", "size", maintain_order=True):
        groups = alike["members"].unique().sort()
        if len(groups) < 2:
            continue
        steps = alike["step"].unique().sort()
        times = np.full((len(groups), len(steps)), np.nan)
        row = np.searchsorted(groups.to_numpy(), alike["members"].to_numpy())
        column = np.searchsorted(steps.to_numpy(), alike["step"].to_numpy())
        times[row, column] = np.maximum(alike["transfer"].to_numpy(), 1)
        usual = _of_others(times)
        slow = effect(times / usual)
        for index in np.flatnonzero(slow.found):
            ranks = [int(rank) for rank in groups[int(index)].split(",")]
            rows = _rows(program, str(operation), ranks)
            yield Cause(
                verdict="slow-link",
                place=place_of(ranks, program.workers),
                rows=rows,
                fair=_scaled(durations, float(slow.factor[index])),
                factor=float(slow.factor[index]),
                least=float(slow.least[index]),
                evidence=(
                    f"{operation} among ranks {', '.join(map(str, ranks[:8]))}"
                    f"{', …' if len(ranks) > 8 else ''} takes {slow.factor[index]:.2f} times as long "
                    f"as among the {len(groups) - 1} other groups of {size}, counted from when the last "
                    "member entered",
                ),
            )


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


def _of_others(times: np.ndarray) -> np.ndarray:
    """By group and step: the median of the other groups."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without others is nan
        return np.array(
            [np.nanmedian(np.delete(times, i, axis=0), axis=0) for i in range(len(times))]
        )


def _rows(program: Program, operation: str, ranks: list[int]) -> np.ndarray:
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
