"""Lines in the order of what matters: by the part of an account's total that they differ by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from steptally.tally.identity import Quantity
from steptally.tally.line import Line, Value, share_of, size_of


def with_shares(lines: Sequence[Line], quantities: Sequence[Quantity]) -> list[Line]:
    """Each difference as a part of the account's total, the larger of both sides'."""
    wholes = {quantity.name: _whole(lines, quantity) for quantity in quantities}
    held_against = {quantity.name: quantity.share_of or quantity.name for quantity in quantities}
    return [
        replace(line, share=share_of(_part(line), wholes[held_against[line.quantity]]))
        for line in lines
    ]


def _part(line: Line) -> Value:
    if line.only_in:
        return line.b if line.a is None else line.a
    return line.difference


def _whole(lines: Iterable[Line], quantity: Quantity) -> int | Fraction:
    """All of a quantity on the side that has more; of what does not add up, the largest."""
    own = [line for line in lines if line.quantity == quantity.name]
    of_a, of_b = [size_of(line.a) for line in own], [size_of(line.b) for line in own]
    if quantity.combine == "max":
        return max([0, *of_a, *of_b])
    return max(sum(of_a), sum(of_b))


def in_order(lines: Sequence[Line], quantities: Sequence[Quantity]) -> list[Line]:
    """Rows by the share of what the account is about, then of the rest; equal lines last."""
    places = {quantity.name: place for place, quantity in enumerate(quantities)}
    weights: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(places))
    told = [(_text(line), line) for line in lines]
    for text, line in told:
        weights[text][places[line.quantity]] = -(line.share or 0.0)
    ordered = sorted(
        told,
        key=lambda pair: (
            _kind(pair[1]),
            weights[pair[0]],
            pair[0],
            places[pair[1].quantity],
        ),
    )
    return [line for _, line in ordered]


def _kind(line: Line) -> int:
    """Differences, what cannot be compared, what says nothing of the other side, equal lines."""
    if line.equal:
        return 3
    if line.only_in and not line.counts:
        return 2
    return 1 if line.refused else 0


def _text(line: Line) -> str:
    """A line's key as text that sorts numbers by their size."""
    return "\0".join(
        f"{value:020}" if isinstance(value, int) else str(value) for value in line.key.values()
    )
