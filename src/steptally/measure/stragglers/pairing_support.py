"""Whether the ends support a pairing: what was not one collective is refused, with the reason.

Nobody leaves an all-reduce before its last member has entered, and all leave together. Pairs that
order alone has made are tested by both; those that rest on recorded numbers by the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.measure.stragglers.clock import Clocks
from steptally.measure.stragglers.collective_names import LEAVE_APART, LEAVE_TOGETHER, MESSAGES
from steptally.measure.stragglers.instances import Pairing, Refusal

# Ends that lie closer than this are together, however short the collective: NCCL's within a node.
TOGETHER_NS = 10_000
# The share of a group's instances that may contradict their pairing before all are refused, and of
# those that order has paired the share that may end further apart than their shortest member lasts.
MOST_CONTRADICTIONS = MOST_SCATTERED = 0.1
# An instance whose ends are this many times further apart than the group's is no instance.
_OUTLIER = 10
# Ends that agree this much better when one rank's are counted from another one are shifted.
_BETTER = 4
_SHIFTS = (-2, -1, 1, 2)
_FEWEST_FOR_SHIFT = 4
_SHIFT_MATTERS_NS = 20_000

Float64s = npt.NDArray[np.float64]


def without_shifted(pairing: Pairing) -> Pairing:
    """The pairing without groups in which a rank's ends fit the others' better one or two along.

    It needs no clocks: how evenly a rank ends behind another does not depend on its offset.
    """
    ordered = pairing.members.filter(
        pl.col("by_order") & pl.col("collective").is_in((*LEAVE_TOGETHER, *LEAVE_APART))
    )
    refused = []
    for (number,), rows in ordered.partition_by("group_id", as_dict=True).items():
        found = _shifted_rank(rows)
        if found is not None:
            rank, shift = found
            way = "later" if shift > 0 else "earlier"
            reason = (
                f"rank {rank}'s ends fit those of the others better {abs(shift)} {way}: "
                "records are lost"
            )
            refused.append((number, _refusal(rows, reason)))
    return _without(pairing, refused)


def supported(pairing: Pairing, clocks: Clocks) -> Pairing:
    """The pairing without groups and instances that their times contradict on these clocks."""
    table = _instances(pairing, clocks)
    refused = []
    for row in _groups(table).iter_rows(named=True):
        reason = _against(row)
        if reason:
            rows = pairing.members.filter(pl.col("group_id") == row["group_id"])
            refused.append((row["group_id"], _refusal(rows, reason)))
    kept = _without(pairing, refused)
    single = table.filter(
        pl.col("contradicts") & ~pl.col("group_id").is_in([number for number, _ in refused])
    )
    return _without_instances(kept, single)


def _shifted_rank(rows: pl.DataFrame) -> tuple[int, int] | None:
    """A rank, and by how many places its ends fit better; None where all fit as they are."""
    sizes = rows.group_by("instance").len()
    whole = sizes.filter(pl.col("len") == sizes["len"].max())["instance"]
    if len(whole) < _FEWEST_FOR_SHIFT:
        return None
    ordered = rows.filter(pl.col("instance").is_in(whole.implode())).sort("rank", "instance")
    ranks = ordered["rank"].unique().sort().to_list()
    if len(ordered) != len(ranks) * len(whole):
        return None  # other members each time: nothing to compare one by one
    leave = ordered["leave_ns"].to_numpy().reshape(len(ranks), len(whole))
    leave = (leave - leave[:, :1]).astype(np.float64)
    for place in range(1, len(ranks)):
        as_paired = _unevenness(leave[0], leave[place], 0)
        if as_paired < _SHIFT_MATTERS_NS:
            continue
        others = {shift: _unevenness(leave[0], leave[place], shift) for shift in _SHIFTS}
        best = min(others, key=lambda shift: others[shift])
        if others[best] * _BETTER < as_paired:
            return ranks[place], best
    return None


def _unevenness(one: Float64s, other: Float64s, shift: int) -> float:
    """The median distance of `other`'s lags behind `one` from their median."""
    if shift > 0:
        lag = other[shift:] - one[:-shift]
    elif shift < 0:
        lag = other[:shift] - one[-shift:]
    else:
        lag = other - one
    if lag.size < 2:
        return float("inf")
    return float(np.median(np.abs(lag - np.median(lag))))


def _instances(pairing: Pairing, clocks: Clocks) -> pl.DataFrame:
    """Each instance with its skew, its shortest member, and whether its times contradict it.

    All members leave between the last enter and the end of the transfer, which the last to enter
    sees from its begin: ends that lie further apart than the shortest member lasts are `scattered`.
    """
    bound = pl.col("rank").replace_strict(clocks.bounds(), default=0, return_dtype=pl.Int64)
    rows = clocks.common(pairing.members).with_columns(bound=bound)
    message = pl.col("collective").is_in(MESSAGES)
    meets = pl.col("collective").is_in((*LEAVE_TOGETHER, *LEAVE_APART, "unknown")).all()
    sends, receives = pl.col("collective") == "send", pl.col("collective") == "recv"
    late = pl.col("enter_ns").max() - pl.col("leave_ns").min()
    unsent = pl.col("enter_ns").filter(sends).max() - pl.col("leave_ns").filter(receives).min()
    table = rows.group_by("instance").agg(
        pl.col("group_id").first(),
        pl.col("by_order").first(),
        late=pl.when(message.any()).then(unsent).when(meets).then(late),
        skew=pl.when(meets).then(pl.col("leave_ns").max() - pl.col("leave_ns").min()),
        shortest=(pl.col("leave_ns") - pl.col("enter_ns")).min(),
        slack=2 * pl.col("bound").max(),
    )
    usual = pl.col("skew").median().over("group_id")
    far = pl.max_horizontal(pl.col("shortest"), _OUTLIER * usual) + pl.col("slack")
    scattered = pl.col("skew") > pl.max_horizontal(pl.col("shortest"), TOGETHER_NS)
    impossible = (pl.col("late") > pl.col("slack")).fill_null(False)
    unlikely = (pl.col("by_order") & (pl.col("skew") > far)).fill_null(False)
    return table.with_columns(
        scattered=scattered.fill_null(False), contradicts=impossible | unlikely
    ).sort("instance")


def _groups(table: pl.DataFrame) -> pl.DataFrame:
    return (
        table.group_by("group_id")
        .agg(
            pl.col("by_order").first(),
            count=pl.len(),
            contradictions=pl.col("contradicts").sum(),
            scattered=pl.col("scattered").sum(),
            skew=pl.col("skew").median(),
            shortest=pl.col("shortest").median(),
        )
        .sort("group_id")
    )


def _against(row: Mapping[str, Any]) -> str:
    """Why a group's pairing is not to be believed; empty where it is."""
    count, contradictions = row["count"], row["contradictions"]
    if contradictions > MOST_CONTRADICTIONS * count:
        return (
            f"in {contradictions} of {count} a member had left before another entered, or long "
            "before it left"
        )
    if not row["by_order"] or row["scattered"] <= MOST_SCATTERED * count:
        return ""
    return (
        f"their ends lie {row['skew'] / 1e6:.3f} ms apart, where the shortest member lasts "
        f"{row['shortest'] / 1e6:.3f} ms (medians): what order pairs are not the same collectives"
    )


def _refusal(rows: pl.DataFrame, reason: str) -> Refusal:
    ranks = tuple(rows["rank"].unique().sort())
    return Refusal(group=rows["group"][0], ranks=ranks, reason=reason)


def _without(pairing: Pairing, refused: list[tuple[int, Refusal]]) -> Pairing:
    if not refused:
        return pairing
    numbers = [number for number, _ in refused]
    bad = pl.col("group_id").is_in(numbers)
    # What lies outside of all steps was of use for clocks only: nothing to say of it.
    told = set(pairing.members.filter(bad & pl.col("step").is_not_null())["group_id"])
    return replace(
        pairing,
        members=pairing.members.filter(~bad),
        refused=(*pairing.refused, *(one for number, one in refused if number in told)),
    )


def _without_instances(pairing: Pairing, single: pl.DataFrame) -> Pairing:
    if single.is_empty():
        return pairing
    bad = pl.col("instance").is_in(single["instance"].implode())
    return replace(
        pairing,
        members=pairing.members.filter(~bad),
        refused=(*pairing.refused, *_single_refusals(pairing.members.filter(bad))),
    )


def _single_refusals(rows: pl.DataFrame) -> Iterator[Refusal]:
    for _, own in sorted(rows.partition_by("group_id", as_dict=True).items()):
        count = own["instance"].n_unique()
        yield _refusal(
            own, f"the times of {count:,} of them do not fit together; the others are kept"
        )
