"""Work that is dealt unevenly: over pipeline stages, or over micro-batches by what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.ideal import as_peers, levelled
from steptally.measure.stragglers.own_time import (
    LEAST_EFFECT,
    Floats,
    OwnTimes,
    effect,
    ratio,
)
from steptally.measure.stragglers.program import BACKWARD, FORWARD, Integers, Program
from steptally.measure.stragglers.replay import Durations
from steptally.measure.stragglers.whereabouts import place_of

# Of the variation of a pass, the part that the other passes of its micro-batch must share.
LEAST_CORRELATION = 0.5
LEAST_MICROBATCHES = 10


def stage_causes(situation: Situation) -> Iterator[Cause]:
    """Pipeline stages whose own work takes longer than the other stages'."""
    own = situation.own
    stages = np.unique(own.stage)
    if stages.size < 2:
        return
    slow = effect(_against_others(own), noisy=_against_others(situation.as_recorded.own))
    for index in np.flatnonzero(slow.found):
        stage = int(stages[index])
        ranks = [r for r, s in zip(own.ranks, own.stage, strict=True) if s == stage]
        rows, factor = situation.rows_of(ranks), float(slow.factor[index])
        work = levelled(situation.graph, situation.durations, situation.fair, rows)
        alone = "one rank alone is recorded of it: a slow worker would look the same"
        yield Cause(
            verdict="stage-imbalance",
            place=place_of(ranks, situation.program.workers),
            rows=rows,
            fair=replace(situation.fair, work=work),
            factor=factor,
            least=float(slow.least[index]),
            after=as_peers(
                situation.graph,
                situation.durations,
                ranks,
                [rank for rank in own.ranks if rank not in ranks],
            ),
            evidence=(
                (
                    f"the own work of stage {stage} takes {factor:.2f} times the mean of "
                    f"the other stages' ({len(stages) - 1})"
                ),
                *([alone] if len(ranks) == 1 else []),
            ),
        )


def _against_others(own: OwnTimes) -> Floats:
    """Each stage's own time (rows) in each step over the mean of the other stages'."""
    return ratio(own.of_stages(own.whole), own.other_stages(own.whole))


def sequence_causes(situation: Situation) -> Iterator[Cause]:
    """Micro-batches of unequal work: what is long in one pass of one is long in all its others.

    Noise, a slow rank or a pause strikes one stage or one pass; a long sequence goes with its
    micro-batch through every stage, forward and backward. So the covariance between the passes of
    a micro-batch is what its content makes, and the rest of the variance is not.
    """
    program, durations = situation.program, situation.durations
    passes = _passes(program, durations)
    shared = _shared_variance(passes)
    if shared is None:
        return
    deviation, correlation, count = shared
    if deviation < LEAST_EFFECT or correlation < LEAST_CORRELATION or count < LEAST_MICROBATCHES:
        return
    rows = np.zeros(len(program.operations), dtype=bool)
    rows[passes["row"].explode().to_numpy()] = True
    yield Cause(
        verdict="sequence-imbalance",
        place=place_of(program.workers, program.workers),
        rows=rows,
        fair=Durations(work=_mean_of_kind(program, durations), delay=durations.delay),
        factor=float(np.exp(deviation)),
        least=float(np.exp(LEAST_EFFECT)),
        evidence=(
            (
                f"micro-batches differ by ±{np.expm1(deviation):.0%} (standard deviation over "
                f"{count:,} of them)"
            ),
            (
                f"{correlation:.0%} of a pass's variance is shared by all passes of its "
                "micro-batch, over stages and directions: it lies in the data"
            ),
        ),
    )


def _passes(program: Program, durations: Durations) -> pl.DataFrame:
    """Forward and backward passes: their operations' `row`s, `cell`, their micro-batch, and
    `deviation`, the logarithm of their time over the mean of their rank's."""
    table = program.operations.with_row_index("row").with_columns(
        work=pl.Series(durations.work), replica=_replicas(program)
    )
    passes = table.filter(
        pl.col("instance").is_null()
        & (pl.col("lane") == "main")
        & pl.col("phase").is_in([FORWARD, BACKWARD])
        & (pl.col("work") > 0)
    )
    known = passes["microbatch"].is_not_null().any()
    batch = "microbatch" if known else "position"
    keys = ["rank", "operation", "chunk", "replica", "step", batch]
    whole = passes.drop_nulls(batch).group_by(keys).agg("row", pl.col("work").sum())
    mean = pl.col("work").mean().over("rank", "operation", "chunk")
    return whole.with_columns(
        cell=pl.struct("replica", "step", batch).rank("dense"),
        deviation=(pl.col("work") / mean).log(),
    )


def _replicas(program: Program) -> pl.Series:
    """By operation: the replica of its rank, all coordinates but the stage."""
    names = {
        rank: str(sorted((axis, at) for axis, at in worker.coordinates.items() if axis != "pp"))
        for rank, worker in program.workers.items()
    }
    ranks = program.operations["rank"]
    if all(name == "[]" for name in names.values()):
        return ranks.cast(pl.String).alias("replica")
    return ranks.replace_strict(names, return_dtype=pl.String).alias("replica")


def _shared_variance(passes: pl.DataFrame) -> tuple[float, float, int] | None:
    """The standard deviation that the passes of a micro-batch share, its part of all variance,
    and the number of micro-batches; None where none has several passes."""
    cells = passes.group_by("cell").agg(
        count=pl.len(), total=pl.col("deviation").sum(), squares=pl.col("deviation").pow(2).sum()
    )
    several = cells.filter(pl.col("count") > 1)
    if several.is_empty():
        return None
    count, total, squares = (several[n].to_numpy() for n in ("count", "total", "squares"))
    covariance = float(np.sum(total**2 - squares) / np.sum(count * (count - 1.0)))
    variance = float(np.sum(squares) / np.sum(count))
    if covariance <= 0 or variance <= 0:
        return None
    return float(np.sqrt(covariance)), covariance / variance, len(several)


def _mean_of_kind(program: Program, durations: Durations) -> Integers:
    """Each operation's work as the mean of its kind on its own rank: ranks stay as they are."""
    table = program.operations.select("rank", "operation", "chunk").with_columns(
        work=pl.Series(durations.work)
    )
    mean = pl.col("work").mean().over("rank", "operation", "chunk").round().cast(pl.Int64)
    return np.asarray(table.select(mean)["work"].to_numpy())
