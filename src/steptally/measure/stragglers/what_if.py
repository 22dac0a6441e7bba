"""The step if one thing took what is fair: a worker, a stage, a replica, a kind of operation.

As published for op tables (arXiv:2505.05713): all operations of the thing are replaced, those that
vary from step to step too, and everything else stays as it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from steptally.measure.stragglers.causes import Situation
from steptally.measure.stragglers.ideal import mended, share_recovered
from steptally.measure.stragglers.replay import Booleans
from steptally.measure.stragglers.whereabouts import place_of, split_axes
from steptally.measure.stragglers.workers import rank_effects
from steptally.tally.straggler_rows import WhatIfRow

# A replay each: of more things than this, those of the largest factor.
MOST_WORKERS = 32
MOST_PLACES = 16


def what_if_rows(situation: Situation) -> list[WhatIfRow]:
    """Every kind of operation, place on an axis and worker, those that recover most first."""
    graph = situation.graph
    step_ns = graph.step_times(situation.durations)
    ideal_ns = graph.step_times(situation.fair)
    rows = []
    for thing in _things(situation):
        fixed_ns = graph.step_times(mended(situation.durations, situation.fair, thing.rows))
        rows.append(
            WhatIfRow(
                what=thing.what,
                coordinates=thing.coordinates,
                operation=thing.operation,
                mended_ns=round(float(np.mean(fixed_ns))),
                recovered_ns=round(float(np.mean(step_ns) - np.mean(fixed_ns))),
                share_recovered=share_recovered(step_ns, fixed_ns, ideal_ns),
            )
        )
    return sorted(rows, key=lambda row: -row.recovered_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thing:
    what: str
    coordinates: Mapping[str, int]
    operation: str
    rows: Booleans


def _things(situation: Situation) -> Iterator[_Thing]:
    workers = situation.program.workers
    operations = situation.program.operations["operation"]
    for operation in operations.unique().sort():
        rows = np.asarray((operations == operation).to_numpy())
        yield _Thing(what="operation", coordinates={}, operation=operation, rows=rows)
    for axis in split_axes(workers):
        what = "stage" if axis == "pp" else axis
        for at in _suspected(situation, axis):
            ranks = [r for r, worker in workers.items() if worker.coordinates.get(axis) == at]
            rows = situation.rows_of(ranks)
            yield _Thing(what=what, coordinates={axis: at}, operation="", rows=rows)
    for rank in _slowest(situation):
        place = place_of([rank], workers).coordinates
        rows = situation.rows_of([rank])
        yield _Thing(what="worker", coordinates=place, operation="", rows=rows)


def _suspected(situation: Situation, axis: str) -> list[int]:
    """The places of an axis; where they are many, those of the longest own time."""
    workers, own = situation.program.workers, situation.own
    total = np.nansum(own.whole, axis=1)
    longest: dict[int, float] = {}
    for rank, length in zip(own.ranks, total, strict=True):
        at = workers[rank].coordinates.get(axis)
        if at is not None:
            longest[at] = max(longest.get(at, 0.0), float(length))
    ordered = sorted(longest, key=lambda at: (-longest[at], at))
    return sorted(ordered[:MOST_PLACES])


def _slowest(situation: Situation) -> list[int]:
    """The workers, the slowest against their peers first; all where they are few."""
    factor = np.nan_to_num(rank_effects(situation)["whole"].factor, nan=1.0)
    order = np.argsort(-factor, kind="stable")[:MOST_WORKERS]
    return [situation.own.ranks[index] for index in order]
