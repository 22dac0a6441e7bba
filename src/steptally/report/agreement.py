"""Predicted against executed FLOPs: the same integer, or the difference."""

from __future__ import annotations

from steptally.report.labels import label
from steptally.tally import Figure, Tally


def executed_flops_agreement(tally: Tally) -> list[str]:
    """One sentence for each pair of executed-FLOP figures that rest on different bases."""
    executed = [
        (key, figure, figure.value)
        for key, figure in tally.summary.items()
        if "flops_per_step_executed" in key and isinstance(figure.value, int)
    ]
    return [
        _sentence(first, first_value, second, second_value, label(key))
        for place, (_, first, first_value) in enumerate(executed)
        for key, second, second_value in executed[place + 1 :]
        if first.basis != second.basis
    ]


def _sentence(first: Figure, first_value: int, second: Figure, second_value: int, name: str) -> str:
    pair = f"{first.basis} {first_value:,}"
    if first_value == second_value:
        return f"{first.basis} = {second.basis} executed FLOPs, exactly: {first_value:,}"
    difference = second_value - first_value
    relative = f" ({100 * difference / first_value:+.3g} %)" if first_value else ""
    return (
        f"executed FLOPs differ: {pair}, {second.basis} {second_value:,}: {difference:+,}{relative}"
    )
