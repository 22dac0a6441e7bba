"""Launch delays that a rank makes itself: those its peers do not have.

An operation's delay is the time from when it could start, by all that is recorded, to when it did.
It may be the rank's own (loading data, Python, a stopped process) or a wait for something that the
recording does not show. What peers share is the latter, or costs all alike: it is left out, as
what-if analysis leaves out all of it (arXiv:2505.05713, section 3.2).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from steptally.measure.stragglers.program import Integers
from steptally.measure.stragglers.replay import Durations, ReplayGraph


def excess_delays(graph: ReplayGraph, durations: Durations) -> Integers:
    """By operation, in ns: its own work's delay over the median of its peers', and at least 0.

    Peers are the same operation of other ranks of the stage in the same step; without them, the
    same operation of the rank in other steps. Collectives and messages have none: a delay before
    them may be a wait that is not recorded. Heads keep theirs, which is older than the recording.
    """
    program = graph.program
    stage = {rank: worker.coordinates.get("pp", 0) for rank, worker in program.workers.items()}
    table = program.operations.select("rank", "step", "operation", "position").with_columns(
        delay=pl.Series(durations.delay),
        stage=pl.col("rank").replace_strict(stage, return_dtype=pl.Int64),
    )
    turn = ["operation", "position"]
    alone = pl.col("rank").n_unique().over("stage", "step", *turn) == 1
    # The lower median: of two peers it is the less delayed that tells what is usual.
    usual = pl.col("delay").quantile(0.5, "lower")
    excess = table.select(
        excess=pl.col("delay")
        - pl.when(alone)
        .then(usual.over("rank", *turn))
        .otherwise(usual.over("stage", "step", *turn))
    )["excess"].to_numpy()
    own = (program.operations["lane"] == "main").to_numpy() & ~graph.member
    kept = np.where(own, np.maximum(excess, 0), 0).astype(np.int64)
    return np.where(graph.heads, durations.delay, kept)
