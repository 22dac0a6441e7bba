"""Predicted against executed FLOPs: the same integer, or the difference."""

from __future__ import annotations

from itertools import combinations

from steptally.tally import Tally
from steptally.tally.figure import BASES


def executed_flops_agreement(tally: Tally) -> list[str]:
    """One sentence for each pair of executed-FLOP figures that rest on different bases."""
    executed = [
        (figure.basis, figure.value)
        for key, figure in tally.summary.items()
        if key.startswith("flops_per_step_executed") and isinstance(figure.value, int)
    ]
    in_order = sorted(executed, key=lambda pair: BASES.index(pair[0]))
    return [
        _sentence(*first, *second)
        for first, second in combinations(in_order, 2)
        if first[0] != second[0]
    ]


def _sentence(first_basis: str, first: int, second_basis: str, second: int) -> str:
    if first == second:
        return f"executed FLOPs: {first_basis} and {second_basis} are equal, {first:,}"
    relative = f" ({100 * (second - first) / first:+.3g} %)" if first else ""
    return (
        f"executed FLOPs differ: {first_basis} {first:,}, {second_basis} {second:,}, that is "
        f"{second - first:+,}{relative}"
    )
