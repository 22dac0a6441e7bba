"""One line of a comparison: a value of A beside one of B, exact where both are integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Value = int | float | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`difference` is B − A, `relative` B / A − 1 (None where A is 0), in the line's `unit`.

    `share` is the difference over the account's total of what it is held against, the larger of
    both sides'. `refused` says why A and B are not subtracted; a line that one side alone has
    (`only_in`, `A` or `B`) has no difference either. `words` are what else the two sides say, where
    they say it differently. `counts`: whether a line of one side alone is a difference.
    """

    account: str
    quantity: str
    unit: str
    a: Value
    b: Value
    key: Mapping[str, Any] = field(default_factory=dict)
    difference: int | float | None = None
    relative: float | None = None
    share: float | None = None
    refused: str = ""
    only_in: str = ""
    counts: bool = True
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    basis: tuple[str, str] = ("", "")
    convention: str = ""

    @property
    def compared(self) -> bool:
        """Whether there is an answer: equal, or by how much not."""
        return not self.refused and not self.only_in

    @property
    def equal(self) -> bool:
        """Whether both sides have the same value."""
        return self.compared and self.a == self.b

    @property
    def counts_alone(self) -> bool:
        """Whether the other side has nothing of what one side has."""
        return bool(self.only_in and self.counts and (self.b if self.a is None else self.a))

    def exceeds(self, limit: Fraction) -> bool:
        """Whether B differs from A by more than `limit` of A; all differs from nothing."""
        if self.only_in:
            return self.counts_alone
        if not self.compared or self.a == self.b:
            return False
        if not (is_number(self.a) and is_number(self.b)):
            return True
        a, b = _exact(self.a), _exact(self.b)
        return abs(b - a) > limit * abs(a)

    def as_json(self) -> dict[str, Any]:
        """The line as documented in docs/schema.md."""
        return {
            "key": dict(self.key),
            "quantity": self.quantity,
            "unit": self.unit,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "relative": self.relative,
            "share": self.share,
            "only_in": self.only_in or None,
            "refused": self.refused or None,
            "words": {name: {"a": a, "b": b} for name, (a, b) in self.words.items()},
            "basis": {"a": self.basis[0], "b": self.basis[1]},
            "convention": self.convention,
        }


def is_number(value: object) -> bool:
    """Whether a value can be subtracted: a finite number, and no truth value."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def difference(a: Value, b: Value) -> int | float | None:
    """B − A, in integers where both are: FLOPs exceed every float's 53 bits. None for words.

    >>> difference(10**20, 10**20 + 1), difference(1.5, 1), difference("a", "b")
    (1, -0.5, None)
    """
    if not (is_number(a) and is_number(b)):
        return None
    if isinstance(a, int) and isinstance(b, int):
        return b - a
    return _float(_exact(b) - _exact(a))


def relative(a: Value, b: Value) -> float | None:
    """B / A − 1, rounded once; None where A is 0, and beyond every float.

    >>> relative(10**20, 10**20 + 1), relative(0, 1), relative(4, 3)
    (1e-20, None, -0.25)
    """
    if not (is_number(a) and is_number(b)) or not a:
        return None
    return 0.0 if a == b else _float((_exact(b) - _exact(a)) / _exact(a))


def share_of(part: Value, whole: int | Fraction) -> float | None:
    """The size of a part over a whole; None where the part is no number or the whole is nothing."""
    if not is_number(part) or not whole:
        return None
    return _float(Fraction(size_of(part)) / whole) if part else 0.0


def size_of(value: Value) -> int | Fraction:
    """How large a number is, exactly; words have no size."""
    if not is_number(value):
        return 0
    return abs(value) if isinstance(value, int) else abs(_exact(value))


def _exact(value: Value) -> Fraction:
    return Fraction(value)  # type: ignore[arg-type]


def _float(exact: Fraction) -> float | None:
    try:
        return float(exact)
    except OverflowError:
        return None
