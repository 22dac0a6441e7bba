"""The step without stragglers: every operation takes what operations of its kind take.

As in what-if analysis (Lin et al. 2025, arXiv:2505.05713, section 3.2): own work takes the mean of
its kind over all ranks and steps, so that the work as a whole stays the same; a transfer takes the
median of its kind, which congestion and lost links do not move. Launch delays, which the paper
leaves out, take the median.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from steptally.measure.stragglers.program import Integers
from steptally.measure.stragglers.replay import Booleans, Durations, ReplayGraph


def ideal(graph: ReplayGraph, durations: Durations) -> Durations:
    """Every operation's duration and delay with that of its kind, over all ranks and steps.

    Own work is of one kind with what carries its name; so are transfers. The mean is that of a
    rank's time in the kind per step, of which an operation has the part `share`. Heads start when
    they did: what made them late is not recorded.
    """
    table = pl.DataFrame(
        {
            "kind": graph.program.operations["operation"],
            "work": durations.work,
            "delay": durations.delay,
            "member": graph.member,
        }
    ).hstack(graph.program.operations.select("rank", "step", "share"))
    in_step = ("rank", "step", "kind")
    ranks_and_steps = (1 / pl.len().over(in_step)).sum().over("kind", "member")
    mean = pl.col("work").sum().over("kind", "member") / ranks_and_steps
    share = pl.col("share").fill_null(1 / pl.len().over(in_step))
    fair = table.select(
        work=pl.when("member")
        .then(pl.col("work").median().over("kind"))
        .otherwise(mean * share)
        .round()
        .cast(pl.Int64),
        delay=pl.col("delay").median().over("kind").round().cast(pl.Int64),
    )
    delay = np.where(graph.heads, durations.delay, fair["delay"].to_numpy())
    return Durations(work=fair["work"].to_numpy(), delay=delay)


def mended(durations: Durations, fair: Durations, rows: Booleans) -> Durations:
    """The recorded durations, those of `rows` replaced by what is fair."""
    return Durations(
        work=np.where(rows, fair.work, durations.work),
        delay=np.where(rows, fair.delay, durations.delay),
    )


def share_recovered(step_ns: Integers, mended_ns: Integers, ideal_ns: Integers) -> float | None:
    """The part of the lost time that mending brings back: (T − T_mended) / (T − T_ideal).

    Means over the steps, as M_W and M_S of arXiv:2505.05713, equation 5. None where nothing is
    lost, so that a part of it has no meaning.

    >>> share_recovered(np.array([10, 12]), np.array([9, 9]), np.array([8, 8]))
    0.6666666666666666
    """
    lost = float(np.mean(step_ns) - np.mean(ideal_ns))
    return float(np.mean(step_ns) - np.mean(mended_ns)) / lost if lost > 0 else None


def slowdown(step_ns: Integers, ideal_ns: Integers) -> float:
    """S = T / T_ideal over the means of the steps (equation 1)."""
    return float(np.mean(step_ns) / np.mean(ideal_ns))


def levelled(graph: ReplayGraph, durations: Durations, fair: Durations, rows: Booleans) -> Integers:
    """The work of each operation, that of `rows` scaled so that each kind's mean is the fair one.

    So what differs from one micro-batch or step to the next stays: only the level is mended.
    Transfers, which have no level of their own, are replaced.
    """
    table = pl.DataFrame(
        {
            "kind": graph.program.operations["operation"],
            "work": durations.work,
            "fair": fair.work,
            "row": np.arange(len(rows)),
        }
    ).filter(pl.Series(rows & ~graph.member))
    scaled = table.with_columns(
        work=pl.col("work") * (pl.col("fair").mean() / pl.col("work").mean()).over("kind")
    )
    work = fair.work.copy()
    usable = scaled.filter(pl.col("work").is_finite())
    work[usable["row"].to_numpy()] = usable["work"].round().cast(pl.Int64).to_numpy()
    return work


def as_peers(
    graph: ReplayGraph, durations: Durations, ranks: Collection[int], peers: Collection[int]
) -> Durations:
    """The own work of `ranks` scaled so that each kind takes what it takes `peers` at the median.

    What differs from one micro-batch or step to the next stays. Unlike the fair durations, which
    spread what is too much over all, this is how the ranks would be without their fault.
    """
    own = ~graph.member & (graph.program.operations["lane"] == "main").to_numpy()
    table = graph.program.operations.select("rank", kind="operation").with_columns(
        work=pl.Series(durations.work), row=np.arange(own.size)
    )
    table = table.filter(pl.Series(own))
    totals = table.group_by("rank", "kind").agg(total=pl.col("work").sum())
    usual = totals.filter(pl.col("rank").is_in(list(peers))).group_by("kind")
    scales = (
        totals.filter(pl.col("rank").is_in(list(ranks)) & (pl.col("total") > 0))
        .join(usual.agg(usual=pl.col("total").median()), on="kind", how="inner")
        .select("rank", "kind", scale=pl.col("usual") / pl.col("total"))
    )
    scaled = table.join(scales, on=["rank", "kind"], how="inner")
    work, delay = durations.work.copy(), durations.delay.copy()
    rows = scaled["row"].to_numpy()
    work[rows] = np.round(scaled["work"].to_numpy() * scaled["scale"].to_numpy()).astype(np.int64)
    delay[rows[~graph.heads[rows]]] = 0
    return Durations(work=work, delay=delay)
