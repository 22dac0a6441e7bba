"""Steps in which a rank, or all of them, stand still: garbage collection, checkpoints, stalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from steptally.measure.stragglers.causes import LEAST_OF_STEP, Cause, Situation
from steptally.measure.stragglers.own_time import LEAST_EFFECT, MAD_TO_SIGMA, Floats, nanmedian
from steptally.measure.stragglers.periods import find_period
from steptally.measure.stragglers.program import Integers
from steptally.measure.stragglers.replay import Booleans, Durations
from steptally.measure.stragglers.whereabouts import place_of
from steptally.measure.stragglers.workers import DOMINANT

# A rank that stands out in more than this part of its steps is slow, and does not pause.
SPORADIC = 0.5
# A step stands out from the rank's others by so many standard deviations, and at least by that.
OUTLIER_SIGMAS, OUTLIER_LEAST = 5.0, 0.10
# What comes at no fixed period may be anything: it is named if it costs this part of the step.
LEAST_OF_RARE = 0.10


def pause_causes(situation: Situation) -> Iterator[Cause]:
    """One cause for each rank that stands out from its own other steps, and one for all at once.

    In all of its own time, or in its standing still alone, which varies less.
    """
    own = situation.own
    for part in (own.whole, own.idle + own.first_idle):
        logs = _over_usual(part, own.whole)
        everybody = nanmedian(logs.T)
        if len(own.ranks) > 1:
            every, out = range(len(own.ranks)), _stand_out(everybody[None])[0]
            yield from _pauses(situation, every, out, _least(everybody[None]))
            logs = logs - everybody
        out, least = _stand_out(logs), _least(logs)
        pausing = np.flatnonzero(out.any(axis=1) & (out.sum(axis=1) <= SPORADIC * len(own.steps)))
        if pausing.size > 1:
            yield from _pauses_here_and_there(situation, pausing, out, least)
        for index in pausing:
            yield from _pauses(situation, [int(index)], out[index], least)
        yield from _periodic(situation, logs)


def _over_usual(part: Floats, whole: Floats) -> Floats:
    """By rank and step, the logarithm of what own time would be if only this part varied, over
    what it usually is."""
    usual = nanmedian(whole)[:, None]
    more = 1 + (part - nanmedian(part)[:, None]) / np.maximum(usual, 1)
    return np.log(np.maximum(more, 1e-3))


def _periodic(situation: Situation, logs: Floats) -> Iterator[Cause]:
    """Ranks whose longest steps come at a fixed period."""
    own = situation.own
    for index, values in enumerate(logs):
        if np.isnan(values).any():
            continue
        period = find_period(values, own.steps, looked_at=len(logs))
        if period is not None:
            least = 1 + LEAST_EFFECT
            yield from _pauses(situation, [index], period.chosen, least)


def _pauses_here_and_there(
    situation: Situation, indices: Integers, out: Booleans, least: float
) -> Iterator[Cause]:
    """The pauses of several ranks as one: garbage collection strikes now here, now there.

    Ranks each of which is slow in a row are slow for a while, as one alone is.
    """
    each = [
        cause for index in indices for cause in _pauses(situation, [int(index)], out[index], least)
    ]
    steps = [situation.own.steps[i] for i in np.flatnonzero(out[indices].any(axis=0))]
    ranks = [rank for cause in each for rank in cause.place.ranks]
    rows = np.logical_or.reduce([cause.rows for cause in each])
    work, delay = situation.durations.work.copy(), situation.durations.delay.copy()
    for cause in each:
        work[cause.rows], delay[cause.rows] = (
            cause.fair.work[cause.rows],
            cause.fair.delay[cause.rows],
        )
    kinds = {cause.verdict for cause in each}
    kind = _kind(steps, in_a_row="pause")
    in_a_row = kinds == {"slow-worker"}
    what = "are each slow for some steps in a row" if in_a_row else "stand still now and then"
    when = "" if in_a_row else f", {kind.when}"
    yield Cause(
        verdict=kinds.pop() if in_a_row or kinds == {"data-loading"} else kind.verdict,
        place=place_of(ranks, situation.program.workers),
        rows=rows,
        fair=Durations(work=work, delay=delay),
        factor=max(cause.factor for cause in each),
        least=least,
        least_of_step=kind.least_of_step,
        evidence=(
            f"{len(ranks)} ranks ({_shown(ranks)}) {what}: steps {_shown(steps)}{when}",
            *kind.why,
        ),
    )


def _stand_out(logs: Floats) -> Booleans:
    """Where a value is far above the middle of its row, by the spread of all rows."""
    away = logs - nanmedian(logs)[:, None]
    return np.asarray(away > np.log(_least(logs)))


def _least(logs: Floats) -> float:
    """The factor over its rank's usual own time from which a step stands out."""
    sigma = MAD_TO_SIGMA * float(np.nanmedian(np.abs(logs - nanmedian(logs)[:, None])))
    return float(np.exp(max(OUTLIER_SIGMAS * sigma, np.log1p(OUTLIER_LEAST))))


def _pauses(
    situation: Situation, indices: Sequence[int], out: Booleans, least: float
) -> Iterator[Cause]:
    own = situation.own
    steps = [step for step, stands_out in zip(own.steps, out, strict=True) if stands_out]
    if not 0 < len(steps) <= SPORADIC * len(own.steps):
        return
    ranks = [own.ranks[index] for index in indices]
    everybody = len(ranks) == len(own.ranks)
    kind = _kind(steps, in_a_row="not-identifiable" if everybody else "slow-worker")
    chosen = situation.program.operations["step"].is_in(steps).to_numpy()

    def longer(of: Floats) -> float:
        """By how much `of` is longer in these steps than in the median of the others, in ms."""
        usual = nanmedian(np.where(out, np.nan, of)[list(indices)])
        return float(np.nanmean(of[list(indices)][:, out] - usual[:, None])) / 1e6

    whole, first = longer(own.whole), longer(own.first_idle)
    usual_ns = float(np.nanmean(nanmedian(own.whole[list(indices)])))
    yield Cause(
        verdict="data-loading" if kind.comes_again and first > DOMINANT * whole else kind.verdict,
        place=place_of(ranks, situation.program.workers),
        rows=situation.rows_of(ranks) & chosen,
        fair=_as_in_other_steps(situation, steps),
        factor=1 + whole * 1e6 / usual_ns,
        least=least,
        least_of_step=kind.least_of_step,
        evidence=(
            (
                f"{len(steps)} of {len(own.steps)} steps ({_shown(steps)}) take {whole:,.1f} ms "
                f"longer than the others, {kind.when}"
            ),
            f"{first:,.1f} ms of it pass before the first computing of the step",
            *kind.why,
        ),
    )


def _shown(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What steps that stand out are called, when they come, and why they are called so."""

    verdict: str
    when: str
    least_of_step: float = LEAST_OF_RARE
    why: tuple[str, ...] = ()

    @property
    def comes_again(self) -> bool:
        return self.verdict == "pause"


def _kind(steps: Sequence[int], *, in_a_row: str) -> _Kind:
    """By the steps that stand out: a period, here and there, in a row, or once.

    `in_a_row` is the class of a run of them: one rank is slow for a while then, and does not pause;
    all ranks at once have a cause outside of them.

    >>> cases = [3, 6, 9], [4, 9], [4, 5, 6], [7]
    >>> [_kind(steps, in_a_row="slow-worker").verdict for steps in cases]
    ['pause', 'pause', 'slow-worker', 'not-identifiable']
    """
    period = _period(steps)
    if period == 1:
        shared = ("all ranks are slow together: the machine, its power or another job on it",)
        why = shared if in_a_row == "not-identifiable" else ()
        return _Kind(verdict=in_a_row, when="in a row", why=why)
    if len(steps) == 1:
        once = "what comes once may be anything: record more steps to see whether it comes again"
        return _Kind(verdict="not-identifiable", when="and no other", why=(once,))
    if period is None:
        return _Kind(verdict="pause", when="at no fixed period")
    return _Kind(verdict="pause", when=f"every {period} steps", least_of_step=LEAST_OF_STEP)


def _period(steps: Sequence[int]) -> int | None:
    """The distance of the steps where it is always the same, over at least three of them.

    >>> _period([3, 6, 9]), _period([3, 6]), _period([1, 2, 5])
    (3, None, None)
    """
    gaps = {after - before for before, after in pairwise(steps)}
    return gaps.pop() if len(gaps) == 1 and len(steps) > 2 else None


def _as_in_other_steps(situation: Situation, steps: Sequence[int]) -> Durations:
    """Each operation as it is in the median of its rank's steps that are not `steps`."""
    durations = situation.durations
    table = situation.program.operations.select("rank", "step", "operation", "position")
    table = table.with_columns(work=pl.Series(durations.work), delay=pl.Series(durations.delay))
    usual = pl.col("work", "delay").filter(~pl.col("step").is_in(steps)).median()
    other = table.select(usual.over("rank", "operation", "position").round().cast(pl.Int64))
    return Durations(
        work=other["work"].fill_null(table["work"]).to_numpy(),
        delay=other["delay"].fill_null(table["delay"]).to_numpy(),
    )
