"""Lines of a comparison as rows to show: what is said twice is said once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steptally.tally import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A line with all the quantities and ranks that it is true of."""

    line: Line
    quantities: tuple[str, ...]
    ranks: tuple[int, ...] = ()


def without_ranks(lines: Iterable[Line], keys: Sequence[str]) -> list[ComparisonRow]:
    """Lines that differ in their rank only, once each, with those ranks."""
    merged: dict[str, list[Line]] = {}
    for line in lines:
        merged.setdefault(repr(replace(line, key=_beside_rank(line), share=None)), []).append(line)
    return [
        ComparisonRow(
            line=same[0],
            quantities=(same[0].quantity,),
            ranks=tuple(line.key["rank"] for line in same) if "rank" in keys else (),
        )
        for same in merged.values()
    ]


def without_repeated_values(rows: Iterable[ComparisonRow]) -> list[ComparisonRow]:
    """Quantities of a line that have the same values, once with all their names."""
    merged: dict[str, ComparisonRow] = {}
    for row in rows:
        told = repr((row.ranks, replace(row.line, quantity="", share=None)))
        found = merged.setdefault(told, row)
        if found is not row:
            merged[told] = replace(found, quantities=(*found.quantities, *row.quantities))
    return list(merged.values())


def _beside_rank(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line.key.items() if name != "rank"}
