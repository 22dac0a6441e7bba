"""Each rank's own time against its peers': what it makes late itself, not what it waits for.

Peers do the same work: ranks of one pipeline stage (all ranks where stages are not known). What is
compared is own work alone, in which a rank waits for nobody: inherited lateness is not in it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.measure.stragglers.program import Program
from steptally.measure.stragglers.replay import Durations

Floats = npt.NDArray[np.float64]

# One false alarm in a hundred recordings, over all ranks that are looked at.
FALSE_ALARMS = 0.01
# Below this, a difference is not worth a verdict however sure it is.
LEAST_EFFECT = 0.03
# Of more steps than this no pairs are made: their median is good enough.
MOST_PAIRED = 60
# With fewer steps, how things differ from each other stands for how they vary.
FEWEST_STEPS = 3
MAD_TO_SIGMA = 1.4826  # of a normal distribution
_MEDIAN_TO_MEAN_ERROR = 1.2533  # the standard error of a median over that of a mean


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """Own time by rank (rows) and step (columns), in ns; nan where a rank lacks a step.

    `whole` = `busy` + `first_idle` + `idle`: computing, standing still before the step's first
    computing, and standing still later. `expert` is the part of `whole` that experts take. `stage`
    is each rank's pipeline stage, 0 where none is known.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    stage: npt.NDArray[np.int64]
    whole: Floats
    busy: Floats
    first_idle: Floats
    idle: Floats
    expert: Floats

    def peers(self, of: Floats) -> Floats:
        """By rank and step: the median of `of` over the rank's peers, without itself.

        Nan where it has none.
        """
        found = np.full_like(of, np.nan)
        for stage in np.unique(self.stage):
            members = np.flatnonzero(self.stage == stage)
            if members.size > 1:
                found[members] = medians_of_others(of[members])
        return found

    def of_stages(self, of: Floats) -> Floats:
        """By stage (rows, in order) and step: the lower quartile of `of` over the stage's ranks.

        Slow workers do not move it.
        """
        return np.array([_lower_quartile(of[self.stage == at]) for at in np.unique(self.stage)])

    def other_stages(self, of: Floats) -> Floats:
        """By stage (rows, in order) and step: the mean over the other stages of their quartiles.

        Of those that have any: nan where no other stage has.
        """
        times = self.of_stages(of)
        others = [np.delete(times, at, axis=0).T for at in range(len(times))]
        return np.array([_nanmean(each) for each in others])

    def excess(self, of: Floats) -> Floats:
        """By rank and step: `of` over its peers', as a part of the peers' whole own time."""
        whole = nanmedian(self.peers(self.whole))[:, None]
        difference = of - self.peers(of)
        excess = np.full_like(of, np.nan)
        np.divide(difference, whole, out=excess, where=whole > 0)
        return excess


def own_times(program: Program, durations: Durations, phase: str | None = None) -> OwnTimes:
    """The own time of every rank and step, of one `phase` only where given.

    Launch delays count as standing still.
    """
    table = program.operations.with_columns(
        work=pl.Series(durations.work), late=pl.Series(durations.delay)
    )
    table = table.filter(pl.col("instance").is_null() & (pl.col("lane") == "main"))
    if phase is not None:
        table = table.filter(pl.col("phase") == phase)
    # What is mended takes another time than was recorded: it computes in the same part of it.
    busy_share = pl.col("busy_ns") / (pl.col("end_ns") - pl.col("start_ns"))
    table = table.with_columns(
        busy=pl.col("work") * busy_share.fill_null(1.0).fill_nan(1.0),
        length=pl.col("work") + pl.col("late"),
        opens=pl.int_range(pl.len()).over("rank", "step") == 0,
    )
    still = pl.col("length") - pl.col("busy")
    # What is known to precede the model, and the delay of whatever opens the step.
    first = pl.when(pl.col("part") == "data").then(still).when("opens").then("late").otherwise(0)
    sums = table.group_by("rank", "step").agg(
        whole=pl.col("length").sum(),
        busy=pl.col("busy").sum(),
        first_idle=first.sum(),
        idle=(still - first).sum(),
        expert=pl.col("length").filter(pl.col("part") == "expert").sum(),
    )
    ranks, steps = sorted(program.workers), program.steps
    row = np.searchsorted(ranks, sums["rank"].to_numpy())
    column = np.searchsorted(steps, sums["step"].to_numpy())

    def spread(name: str) -> Floats:
        values = np.full((len(ranks), len(steps)), np.nan)
        values[row, column] = sums[name].to_numpy()
        return values

    stage = [program.workers[rank].coordinates.get("pp", 0) for rank in ranks]
    return OwnTimes(
        ranks=tuple(ranks),
        steps=tuple(steps),
        stage=np.array(stage, dtype=np.int64),
        whole=spread("whole"),
        busy=spread("busy"),
        first_idle=spread("first_idle"),
        idle=spread("idle"),
        expert=spread("expert"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How much slower each of some things is than its peers, over the steps.

    `factor` is the middle over the steps of own / peers, `least` the least factor that the noise
    of this recording lets tell, for each.
    """

    factor: Floats
    least: Floats

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """Where the factor exceeds what noise makes."""
        return np.nan_to_num(self.factor, nan=0.0) > self.least


def ratio(own: Floats, peers: Floats) -> Floats:
    """own / peers, nan where either is not known or nothing."""
    told = (own > 0) & (peers > 0) & np.isfinite(own) & np.isfinite(peers)
    return np.divide(own, peers, out=np.full_like(own, np.nan), where=told)


def effect(ratios: Floats, noisy: Floats | None = None) -> Effect:
    """The effect in ratios own / peers by thing (rows) and step (columns).

    The noise is that of `noisy`, the same ratios as they were recorded, where something is mended.
    """
    logs = np.log(ratios)
    least = _least_difference(logs if noisy is None else np.log(noisy))
    return Effect(factor=np.exp(_middle(logs)), least=np.exp(least))


def excess_effect(excess: Floats, noisy: Floats | None = None) -> Effect:
    """The effect of one part of own time: `excess` is (own − peers) of it over the whole of peers.

    A part has less noise than the whole, so that a rank may stand out in it alone.
    """
    least = _least_difference(excess if noisy is None else noisy)
    return Effect(factor=1 + _middle(excess), least=1 + least)


def _middle(values: Floats) -> Floats:
    """By row, the middle of its values over the steps.

    With enough steps the median of the means of all pairs (Hodges and Lehmann 1963), which needs a
    third fewer of them than the median; else the median.
    """
    return np.median(_pair_means(values), axis=1) if _is_enough(values) else nanmedian(values)


def _least_difference(values: Floats) -> Floats:
    """By row, the least middle that is no noise: one of all rows exceeds it by chance once in a
    hundred recordings.

    With enough steps the distance from the middle to its lower confidence limit (the mean of a pair
    at the critical value of Wilcoxon's signed ranks): nothing is assumed of how noise is
    distributed. With few, the median's standard error 1.2533 σ/√n: σ is the spread of a row, or
    that of all where it is more; of one or two steps, how far rows lie apart.
    """
    if _is_enough(values):
        means = np.sort(_pair_means(values), axis=1)
        limit = int(_critical_rank(values))
        return np.maximum(np.median(means, axis=1) - means[:, limit], LEAST_EFFECT)
    middle = nanmedian(values)
    count = np.maximum(np.sum(~np.isnan(values), axis=1), 1)
    spread = MAD_TO_SIGMA * nanmedian(np.abs(values - middle[:, None]))
    pooled = _median_of_known(spread)
    known = count  # of values that tell the spread
    if count.max() < FEWEST_STEPS:
        pooled = max(pooled, MAD_TO_SIGMA * _median_of_known(np.abs(middle)))
        known = np.full_like(count, len(values))
    sigma = np.where(np.isnan(spread), pooled, np.maximum(spread, pooled))
    error = _MEDIAN_TO_MEAN_ERROR * sigma / np.sqrt(count) * _few(known)
    return np.asarray(np.maximum(_quantile(values) * error, LEAST_EFFECT))


def _quantile(values: Floats) -> float:
    """How many standard errors noise exceeds in one of all rows, in one recording of a hundred."""
    return NormalDist().inv_cdf(1 - FALSE_ALARMS / max(2 * len(values), 2))


def _critical_rank(values: Floats) -> float:
    """The place, in order, of the pair's mean that is the lower confidence limit; below 1 where
    the steps are too few for one (normal approximation of the signed ranks' sum)."""
    count = values.shape[1]
    deviation = np.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return float(count * (count + 1) / 4 - _quantile(values) * deviation)


def _is_enough(values: Floats) -> bool:
    """Whether there are steps enough for signed ranks, in every row, and no more than can pair."""
    told = values.shape[1] <= MOST_PAIRED and not np.isnan(values).any()
    return bool(told and _critical_rank(values) >= 1)


def _pair_means(values: Floats) -> Floats:
    """By row, the means of all pairs of its values, each with itself too (Walsh averages)."""
    first, second = np.triu_indices(values.shape[1])
    return np.asarray((values[:, first] + values[:, second]) / 2)


def _median_of_known(values: Floats) -> float:
    """The median without nans; 0 where there is nothing else."""
    told = values[~np.isnan(values)]
    return float(np.median(told)) if told.size else 0.0


def _few(count: npt.NDArray[np.int64]) -> Floats:
    """What to widen an error by that rests on few values: Student's t over the normal quantile.

    The usual approximation 1 + (z² + 1) / (4 ν) at z = 3 (Abramowitz and Stegun 26.7.5, first
    term), with ν = n − 1.
    """
    return 1 + 10 / (4 * np.maximum(count - 1, 1))


def medians_of_others(values: Floats) -> Floats:
    """By row and column: the median of the column's other rows, without nans; nan if there is none.

    O(n log n) in the number of rows: of the n − 1 others in order, the middle ones stand where they
    stand among all, or one place further where this row comes before them.
    """
    order = np.argsort(values, axis=0, kind="stable")  # nans last
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(values))[:, None], axis=0)
    told = ~np.isnan(values)
    others = told.sum(axis=0) - told
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    last = len(values) - 1
    below = np.take_along_axis(ordered, np.minimum(low + (told & (place <= low)), last), axis=0)
    above = np.take_along_axis(ordered, np.minimum(high + (told & (place <= high)), last), axis=0)
    return np.where(others > 0, (below + above) / 2, np.nan)


def _lower_quartile(values: Floats) -> Floats:
    """By column, the lower quartile without nans: the least of up to four; nan if there is none."""
    known = np.sum(~np.isnan(values), axis=0)
    place = np.maximum(known - 1, 0) // 4
    return np.asarray(np.take_along_axis(np.sort(values, axis=0), place[None], axis=0)[0])


def _nanmean(values: Floats) -> Floats:
    """The mean of each row without its nans; nan for a row of nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=1))


def nanmedian(values: Floats) -> Floats:
    """The median of each row without its nans; nan for a row of nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=1))
