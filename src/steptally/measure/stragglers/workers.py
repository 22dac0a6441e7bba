"""Ranks slower than their peers in most steps: in computing, on the host, or in loading data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.ideal import levelled
from steptally.measure.stragglers.own_time import Effect, Floats, effect, own_times, ratio
from steptally.measure.stragglers.program import BACKWARD, FORWARD, Integers
from steptally.measure.stragglers.replay import Booleans
from steptally.measure.stragglers.whereabouts import Place, together

# Of a rank's excess over its peers, the part that must lie in one place to be called after it.
DOMINANT = 0.5
# A pass alone is slower where the other's excess is below this part of its.
ALONE = 0.25


def worker_causes(situation: Situation) -> Iterator[Cause]:
    """One cause for each rank whose own time is above its peers', or for all those of one place."""
    own, slow = situation.own, rank_effect(situation)
    ranks = [own.ranks[index] for index in np.flatnonzero(slow.found)]
    for place in together(ranks, situation.program.workers):
        yield _cause(situation, slow, place)


def rank_effect(situation: Situation) -> Effect:
    """How much slower each rank is than its peers, in own time."""
    now, recorded = (
        ratio(own.whole, own.peers(own.whole)) for own in (situation.own, situation.as_recorded.own)
    )
    return effect(now, noisy=recorded)


def _cause(situation: Situation, slow: Effect, place: Place) -> Cause:
    at = _indices(situation, place)
    steps = len(situation.own.steps)
    factor = float(np.exp(np.mean(np.log(slow.factor[at]))))
    kind = _kind_of_excess(situation, place)
    fair = situation.fair
    work = levelled(situation.graph, situation.durations, fair, kind.rows)
    return Cause(
        verdict=kind.verdict,
        place=place,
        rows=kind.rows,
        fair=replace(fair, work=work),
        factor=factor,
        least=float(np.max(slow.least[at])),
        phase=_phase(situation, place),
        evidence=(
            (
                f"own work takes {factor:.2f} times its peers' (median of {steps} "
                f"steps); noise alone makes up to {np.max(slow.least[at]):.2f}"
            ),
            kind.why,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What an excess is called, the operations that have it, and why it is called so."""

    verdict: str
    rows: Booleans
    why: str


def _kind_of_excess(situation: Situation, place: Place) -> _Kind:
    own, at = situation.own, _indices(situation, place)

    def excess(of: Floats) -> float:
        return float(np.nanmean(of[at] - own.peers(of)[at])) / 1e6

    whole, busy, first = excess(own.whole), excess(own.busy), excess(own.first_idle)
    rows = situation.rows_of(place.ranks)
    if first > DOMINANT * whole:
        return _Kind(
            verdict="data-loading",
            rows=rows & first_of_steps(situation),
            why=f"{first:,.1f} ms a step more pass before its first computing, where batches are "
            "loaded",
        )
    if _only_in_experts(situation, at):
        return _Kind(
            verdict="expert-hot-spot",
            rows=rows & (situation.program.operations["part"] == "expert").to_numpy(),
            why="only its experts' work takes longer; all other work is as its peers'",
        )
    where = "computing" if busy > DOMINANT * whole else "standing still, waiting for its host"
    return _Kind(
        verdict="slow-worker",
        rows=rows,
        why=f"of {whole:,.1f} ms a step more, {max(busy, whole - busy):,.1f} are {where}",
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
        own = own_times(situation.program, situation.durations, phase)
        slower = ratio(own.whole, own.peers(own.whole))[_indices(situation, place)]
        if np.all(np.isnan(slower)):
            return ""
        excess[phase] = max(float(np.nanmedian(slower)) - 1, 0.0)
    if excess[BACKWARD] < ALONE * excess[FORWARD]:
        return FORWARD
    return BACKWARD if excess[FORWARD] < ALONE * excess[BACKWARD] else ""


def _indices(situation: Situation, place: Place) -> Integers:
    return np.searchsorted(np.array(situation.own.ranks), np.array(place.ranks))
