"""Ranks slower than their peers in most steps: in computing, on the host, or in loading data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.ideal import as_peers, levelled, mended
from steptally.measure.stragglers.own_time import (
    Effect,
    Floats,
    effect,
    excess_effect,
    ratio,
)
from steptally.measure.stragglers.program import BACKWARD, FORWARD, Integers
from steptally.measure.stragglers.replay import Booleans, Durations
from steptally.measure.stragglers.whereabouts import Place, place_of, together
from steptally.tally.ranges import number_ranges

# Of a rank's excess over its peers, the part that must lie in one place to be called after it.
DOMINANT = 0.5
# A pass alone is slower where the other's excess is below this part of its.
ALONE = 0.25
# Ranks are slow alike whose excess is at least this part of the slowest one's.
ALIKE = 0.5
# Of places that are slow alike, up to so many are looked at one more at a time.
MOST_COUNTED = 8


def worker_causes(situation: Situation) -> Iterator[Cause]:
    """Ranks that take longer than their peers for their own work, or for a part of it.

    One cause for each rank, or for all ranks of one place; and for several that are slow alike, of
    which mending one alone brings nothing back.
    """
    found = set[tuple[str, tuple[int, ...]]]()
    effects = rank_effects(situation)
    for part, slow in effects.items():
        own, workers = situation.own, situation.program.workers
        alone = [
            place
            for alike in _of_like_excess(slow)
            for place in together([own.ranks[index] for index in alike], workers)
        ]
        each = [(place, None) for place in alone]
        for place, weakest in [*each, *_slowest_together(situation, slow, alone)]:
            kind = _kind_of_excess(situation, place, part)
            if (kind.verdict, place.ranks) not in found:
                found.add((kind.verdict, place.ranks))
                whole = effects["whole"]
                in_whole = whole.found[_indices(situation, place)].all() and part != "first_idle"
                cause = _cause(situation, kind, whole if in_whole else slow, place)
                yield replace(cause, weakest=weakest)


def _of_like_excess(slow: Effect) -> Iterator[Integers]:
    """The ranks (indices) that stand out, the slowest first, those of about one excess together.

    A rank that is hardly slow is not of one place with one that is slow by far.
    """
    left = np.flatnonzero(slow.found)
    while left.size:
        excess = slow.factor[left] - 1
        near = excess >= ALIKE * excess.max()
        yield left[near]
        left = left[~near]


def _slowest_together(
    situation: Situation, slow: Effect, places: Sequence[Place]
) -> Iterator[tuple[Place, float]]:
    """The slowest two places as one, the slowest three, and so on; of many, every doubling.

    With the factor of the least slow of them.
    """

    def factor(place: Place) -> float:
        return float(np.mean(slow.factor[_indices(situation, place)]))

    ordered = sorted(places, key=factor, reverse=True)
    for count in range(2, len(ordered) + 1):
        if count <= MOST_COUNTED or count == len(ordered) or count & (count - 1) == 0:
            ranks = [rank for place in ordered[:count] for rank in place.ranks]
            yield place_of(ranks, situation.program.workers), factor(ordered[count - 1])


def rank_effects(situation: Situation) -> dict[str, Effect]:
    """How much longer each rank takes than its peers, in the whole of its own time and in parts."""
    now, before = situation.own, situation.as_recorded.own
    ratios = (ratio(own.whole, own.peers(own.whole)) for own in (now, before))
    return {
        "first_idle": excess_effect(now.excess(now.first_idle), before.excess(before.first_idle)),
        "whole": effect(*ratios),
        "busy": excess_effect(now.excess(now.busy), before.excess(before.busy)),
        "idle": excess_effect(now.excess(now.idle), before.excess(before.idle)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What an excess is called, the operations that have it, and why it is called so."""

    verdict: str
    rows: Booleans
    why: str


def _cause(situation: Situation, kind: _Kind, slow: Effect, place: Place) -> Cause:
    at = _indices(situation, place)
    factor, least = float(np.mean(slow.factor[at])), float(np.max(slow.least[at]))
    fair = situation.fair
    work = levelled(situation.graph, situation.durations, fair, kind.rows)
    return Cause(
        verdict=kind.verdict,
        place=place,
        rows=kind.rows,
        fair=replace(fair, work=work),
        factor=factor,
        least=least,
        after=_mended(situation, place, kind),
        phase="" if kind.verdict == "data-loading" else _phase(situation, place),
        evidence=(
            (
                f"own work takes {factor:.2f} times its peers', in the middle of "
                f"{len(situation.own.steps)} steps; noise alone makes up to {least:.2f}"
            ),
            kind.why,
            *_several(situation, place),
        ),
    )


def _several(situation: Situation, place: Place) -> list[str]:
    """That a place is some ranks and not all that its coordinates stand for."""
    named = place.coordinates.items()
    meant = [r for r, one in situation.program.workers.items() if named <= one.coordinates.items()]
    if len(place.ranks) == len(meant):
        return []
    text = (
        f"{len(place.ranks)} ranks ({number_ranges(place.ranks)}) are slow together: mending fewer "
        "of them brings less back, as the others hold the step up as long"
    )
    return [text]


def _mended(situation: Situation, place: Place, kind: _Kind) -> Durations:
    """The durations without this cause: as the ranks' peers in what it slows."""
    own = situation.own
    stages = {own.stage[index] for index in _indices(situation, place)}
    peers = [
        rank
        for rank, stage in zip(own.ranks, own.stage, strict=True)
        if stage in stages and rank not in place.ranks
    ]
    scaled = as_peers(situation.graph, situation.durations, place.ranks, peers)
    return mended(situation.durations, scaled, kind.rows)


def _kind_of_excess(situation: Situation, place: Place, part: str) -> _Kind:
    """What to call the excess that stands out in a part: by where most of it lies."""
    own, at = situation.own, _indices(situation, place)

    def excess(of: Floats) -> float:
        return float(np.nanmedian(of[at] - own.peers(of)[at])) / 1e6

    whole, busy, first = excess(own.whole), excess(own.busy), excess(own.first_idle)
    rows = situation.rows_of(place.ranks)
    if part == "first_idle" or first > DOMINANT * whole:
        return _Kind(
            verdict="data-loading",
            rows=rows & first_of_steps(situation),
            why=f"{first:,.1f} ms a step more pass before its model begins, where batches are "
            "loaded",
        )
    if _only_in_experts(situation, at):
        return _Kind(
            verdict="expert-hot-spot",
            rows=rows & (situation.program.operations["part"] == "expert").to_numpy(),
            why="only its experts' work takes longer; all other work is as its peers'",
        )
    computes = part == "busy" or (part == "whole" and busy > DOMINANT * whole)
    where = "computing" if computes else "standing still, waiting for its host"
    length = busy if computes else whole - busy
    return _Kind(
        verdict="slow-worker",
        rows=rows,
        why=f"{length:,.1f} ms a step more are {where}",
    )


def first_of_steps(situation: Situation) -> Booleans:
    """The own work of each rank's step before its first computing, or its first own work."""
    table = situation.program.operations.with_row_index("row")
    first = table.filter(lane="main").group_by("rank", "step").first()["row"].to_numpy()
    rows = (table["part"] == "data").to_numpy().copy()
    rows[first] = True
    return np.asarray(rows)


def _only_in_experts(situation: Situation, at: Integers) -> bool:
    """Whether the experts' part is slower than the peers' and all other work hardly is."""
    own = situation.own
    if not np.any(own.expert > 0):
        return False
    experts = effect(ratio(own.expert, own.peers(own.expert)))
    rest = own.whole - own.expert
    others = effect(ratio(rest, own.peers(rest)))
    excess = experts.factor[at] - 1
    return bool(np.all(experts.found[at]) and np.all(others.factor[at] - 1 < ALONE * excess))


def _phase(situation: Situation, place: Place) -> str:
    """The pass that alone is slower than its peers; empty where both are, or none is known."""
    excess = {}
    for phase in (FORWARD, BACKWARD):
        own = situation.own_in(phase)
        slower = ratio(own.whole, own.peers(own.whole))[_indices(situation, place)]
        if np.all(np.isnan(slower)):
            return ""
        excess[phase] = max(float(np.nanmedian(slower)) - 1, 0.0)
    if excess[BACKWARD] < ALONE * excess[FORWARD]:
        return FORWARD
    return BACKWARD if excess[FORWARD] < ALONE * excess[BACKWARD] else ""


def _indices(situation: Situation, place: Place) -> Integers:
    return np.searchsorted(np.array(situation.own.ranks), np.array(place.ranks))
