"""What may have made the step late: each cause with the operations it slows, and its evidence.

A cause is only a suspicion until the replay shows what mending it brings back (`verdicts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from steptally.measure.stragglers.own_time import Effect, Floats, OwnTimes, effect, own_times
from steptally.measure.stragglers.places import Place, place_of, together
from steptally.measure.stragglers.program import Integers, Program
from steptally.measure.stragglers.replay import Booleans, Durations

# Of a rank's excess over its peers, the part that must lie in one place to be called after it.
DOMINANT = 0.5
# Steps in which a rank stands out count as pauses up to this part of all; beyond, it is slow.
SPORADIC = 0.5
# A step stands out from the rank's others by so many standard deviations, and at least by that.
OUTLIER_SIGMAS, OUTLIER_LEAST = 5.0, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A suspicion: `rows` of the program would take `fair` if it were mended."""

    verdict: str
    place: Place
    rows: Booleans
    fair: Durations
    factor: float | None = None
    least: float | None = None
    phase: str = ""
    evidence: tuple[str, ...] = field(default=())


def worker_causes(program: Program, durations: Durations, fair: Durations) -> Iterator[Cause]:
    """Ranks slower than their peers in most steps: in computing, on the host, or in loading data."""
    own = own_times(program, durations.delay)
    peers = own.peers(own.whole)
    slow = effect(own.whole / peers)
    for place in together([own.ranks[i] for i in np.flatnonzero(slow.found)], program.workers):
        yield _worker_cause(program, own, slow, place, fair)


def _worker_cause(
    program: Program, own: OwnTimes, slow: Effect, place: Place, fair: Durations
) -> Cause:
    at = np.searchsorted(own.ranks, place.ranks)
    factor = float(np.exp(np.mean(np.log(slow.factor[at]))))
    least = float(np.max(slow.least[at]))
    excess = _excess(own, at)
    rows = _rows_of(program, place)
    verdict, rows, why = _kind_of_excess(program, own, place, excess, rows)
    words = (
        f"own work takes {factor:.2f} times its peers' (median of {len(own.steps)} steps); "
        f"noise alone makes up to {least:.2f}",
        *why,
    )
    return Cause(
        verdict=verdict,
        place=place,
        rows=rows,
        fair=fair,
        factor=factor,
        least=least,
        phase=_phase(program, place),
        evidence=words,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excess:
    """What some ranks take over their peers in the mean step, in ns."""

    whole: float
    busy: float
    first_idle: float
    idle: float


def _excess(own: OwnTimes, at: Integers) -> _Excess:
    def mean_excess(of: Floats) -> float:
        return float(np.nanmean(of[at] - own.peers(of)[at]))

    return _Excess(
        whole=mean_excess(own.whole),
        busy=mean_excess(own.busy),
        first_idle=mean_excess(own.first_idle),
        idle=mean_excess(own.idle),
    )


def _kind_of_excess(
    program: Program, own: OwnTimes, place: Place, excess: _Excess, rows: Booleans
) -> tuple[str, Booleans, list[str]]:
    """What the excess is called, the operations to mend, and why."""
    if excess.first_idle > DOMINANT * excess.whole:
        part = _first_of_steps(program)
        return (
            "data-loading",
            rows & part,
            [
                f"{excess.first_idle / 1e6:,.1f} ms a step of it pass before the first computing of "
                "the step, where batches are loaded"
            ],
        )
    if _only_in_experts(own, place):
        expert = (program.operations["part"] == "expert").to_numpy()
        return (
            "expert-hot-spot",
            rows & expert,
            ["only the experts' work takes longer, all other work is as its peers'"],
        )
    if _is_whole_replica(program, place):
        return (
            "sequence-imbalance",
            rows,
            [
                "every stage of the replica is slower, on more than one host: what they share is data"
            ],
        )
    where = "computing" if excess.busy > DOMINANT * excess.whole else "standing still (the host)"
    return (
        "slow-worker",
        rows,
        [f"{max(excess.busy, excess.idle) / 1e6:,.1f} ms a step of it is {where}"],
    )


def _only_in_experts(own: OwnTimes, place: Place) -> bool:
    """Whether the experts' part is slower than the peers' and all other work is not."""
    if not np.any(own.expert > 0):
        return False
    at = np.searchsorted(own.ranks, place.ranks)
    with np.errstate(divide="ignore", invalid="ignore"):
        experts = effect(own.expert / own.peers(own.expert))
        rest = own.whole - own.expert
        others = effect(rest / own.peers(rest))
    excess = experts.factor[at] - 1
    return bool(np.all(experts.found[at]) and np.all(others.factor[at] - 1 < excess / 3))


def _is_whole_replica(program: Program, place: Place) -> bool:
    """Whether the ranks are all stages of one dp replica, and not just those of one host."""
    stages = {program.workers[rank].coordinates.get("pp", 0) for rank in place.ranks}
    return set(place.coordinates) == {"dp"} and len(stages) > 1 and place.host is None


def pause_causes(program: Program, durations: Durations) -> Iterator[Cause]:
    """Ranks that stand out from their own other steps in a few of them; then all ranks at once."""
    own = own_times(program, durations.delay)
    typical = np.nanmedian(own.whole, axis=1, keepdims=True)
    ratio = own.whole / typical
    together_ratio = np.nanmedian(ratio, axis=0)
    if len(own.ranks) > 1:
        yield from _pauses_of_all(program, own, together_ratio, durations)
        ratio = ratio / together_ratio
    stands_out = _stands_out(np.log(ratio))
    for index in np.flatnonzero(stands_out.any(axis=1)):
        steps = stands_out[index]
        if steps.sum() <= SPORADIC * len(own.steps):
            yield _pause(program, own, [index], steps, durations)


def _stands_out(logs: Floats) -> Booleans:
    """Where a value is far above the middle of its row, by the spread of all rows."""
    middle = np.nanmedian(logs, axis=-1, keepdims=True)
    sigma = 1.4826 * np.nanmedian(np.abs(logs - middle))
    return np.asarray(logs - middle > max(OUTLIER_SIGMAS * sigma, np.log1p(OUTLIER_LEAST)))


def _pauses_of_all(
    program: Program, own: OwnTimes, together_ratio: Floats, durations: Durations
) -> Iterator[Cause]:
    steps = _stands_out(np.log(together_ratio))
    if steps.any() and steps.sum() <= SPORADIC * len(own.steps):
        yield _pause(program, own, list(range(len(own.ranks))), steps, durations)


def _pause(
    program: Program, own: OwnTimes, indices: list[int], steps: Booleans, durations: Durations
) -> Cause:
    ranks = [own.ranks[index] for index in indices]
    place = place_of(ranks, program.workers)
    chosen = [step for step, out in zip(own.steps, steps, strict=True) if out]
    rows = _rows_of(program, place) & program.operations["step"].is_in(chosen).to_numpy()
    typical = np.nanmedian(own.whole[indices], axis=1)
    longer = float(np.nanmean(own.whole[indices][:, steps] - typical[:, None]))
    first = own.first_idle[indices]
    longer_first = float(np.nanmean(first[:, steps]) - np.nanmean(np.nanmedian(first, axis=1)))
    verdict = "data-loading" if longer_first > DOMINANT * longer else "pause"
    period = _period(chosen)
    when = f"every {period} steps" if period else "at no fixed period"
    return Cause(
        verdict=verdict,
        place=place,
        rows=rows,
        fair=_as_in_other_steps(program, durations, chosen),
        factor=1 + longer / float(np.nanmean(typical)),
        least=1 + OUTLIER_LEAST,
        evidence=(
            f"{len(chosen)} of {len(own.steps)} steps ({', '.join(map(str, chosen[:8]))}"
            f"{', …' if len(chosen) > 8 else ''}) take {longer / 1e6:,.1f} ms longer than the "
            f"others, {when}",
        ),
    )


def _period(steps: list[int]) -> int | None:
    """The distance of the steps where it is always the same, over at least three of them."""
    gaps = {after - before for before, after in zip(steps, steps[1:], strict=False)}
    return gaps.pop() if len(gaps) == 1 and len(steps) > 2 and gaps != {1} else None


def _as_in_other_steps(program: Program, durations: Durations, steps: list[int]) -> Durations:
    """Each operation as it is in the median of the rank's steps that are not `steps`."""
    table = program.operations.select("rank", "step", "operation", "position").with_columns(
        work=durations.work, delay=durations.delay
    )
    keys = ["rank", "operation", "position"]
    usual = pl.col("work", "delay").filter(~pl.col("step").is_in(steps)).median()
    other = table.select(usual.over(keys)).with_columns(pl.all().round().cast(pl.Int64))
    return Durations(
        work=other["work"].fill_null(pl.Series(durations.work)).to_numpy(),
        delay=other["delay"].fill_null(pl.Series(durations.delay)).to_numpy(),
    )


def _rows_of(program: Program, place: Place) -> Booleans:
    return np.asarray(program.operations["rank"].is_in(place.ranks).to_numpy())


def _first_of_steps(program: Program) -> Booleans:
    """The own work of each rank's step before its first computing, or its first own work."""
    table = program.operations.with_row_index("row").filter(pl.col("lane") == "main")
    first = table.filter(pl.int_range(pl.len()).over("rank", "step") == 0)["row"].to_numpy()
    rows = (program.operations["part"] == "data").to_numpy().copy()
    rows[first] = True
    return np.asarray(rows)


def _phase(program: Program, place: Place) -> str:
    """The pass that alone is slower than its peers; empty where both are, or none is known."""
    slower = []
    for phase in ("forward", "backward"):
        only = program.operations.filter(pl.col("phase") == phase)
        if only.is_empty():
            return ""
        own = own_times(
            Program(
                operations=only,
                before=np.empty(0, np.int64),
                after=np.empty(0, np.int64),
                workers=program.workers,
            )
        )
        at = np.searchsorted(own.ranks, place.ranks)
        slower.append(float(np.nanmedian(own.whole[at] / own.peers(own.whole)[at])))
    forward, backward = (max(ratio - 1, 0.0) for ratio in slower)
    if forward > 4 * backward:
        return "forward"
    return "backward" if backward > 4 * forward else ""
