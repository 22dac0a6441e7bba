"""The summary figures of two tallies, each beside the one of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steptally.tally.figure import Figure
from steptally.tally.line import Line, difference, relative, size_of
from steptally.tally.tally import Tally

# What is counted. Any other unit is one of time or of a rate, or of a part of the time.
COUNTED_UNITS = frozenset(
    {
        *("FLOP", "FLOP/token", "byte", "parameter", "token", "sequence", "call"),
        *("rank", "node", "step", "start", "convention", "true or false", ""),
    }
)
# Their origin is the step at which they were read.
OF_ONE_STEP = ("loss_first", "loss_last")
NOT_EQUAL_WORK = "not the same work"
SUMMARY = "summary"


def time_like(unit: str) -> bool:
    """Whether a value tells how fast the work was done: it needs equal work to be compared.

    >>> time_like("token/s"), time_like("1"), time_like("FLOP")
    (True, True, False)
    """
    return unit not in COUNTED_UNITS


def compare_figures(a: Tally, b: Tally, unequal_work: Sequence[str]) -> list[Line]:
    """A line for each figure: what differs most of itself first, equal ones last."""
    lines = [
        _line(name, figure, b.summary[name], bool(unequal_work))
        for name, figure in a.summary.items()
        if name in b.summary
    ]
    lines += [_alone(name, one, "A") for name, one in a.summary.items() if name not in b.summary]
    lines += [_alone(name, one, "B") for name, one in b.summary.items() if name not in a.summary]
    return sorted(lines, key=_order)


def _line(name: str, a: Figure, b: Figure, unequal_work: bool) -> Line:
    refused = _why_not(name, a, b, unequal_work)
    return Line(
        account=SUMMARY,
        quantity=name,
        unit=a.unit,
        a=a.value,
        b=b.value,
        difference=None if refused else difference(a.value, b.value),
        relative=None if refused else relative(a.value, b.value),
        refused=refused,
        basis=(a.basis, b.basis),
        convention=a.convention,
    )


def _alone(name: str, figure: Figure, side: str) -> Line:
    """A figure of one side: the other may not have looked, so that it is no difference."""
    return Line(
        account=SUMMARY,
        quantity=name,
        unit=figure.unit,
        a=figure.value if side == "A" else None,
        b=figure.value if side == "B" else None,
        only_in=side,
        counts=False,
        basis=(figure.basis, "") if side == "A" else ("", figure.basis),
        convention=figure.convention,
    )


def _why_not(name: str, a: Figure, b: Figure, unequal_work: bool) -> str:
    lacking = [side for side, figure in (("A", a), ("B", b)) if figure.value is None]
    if lacking:
        return f"not known in {' and '.join(lacking)}"
    if a.unit != b.unit:
        return f"unit {a.unit!r} against {b.unit!r}"
    if a.convention != b.convention:
        return f"convention {a.convention!r} against {b.convention!r}"
    if name in OF_ONE_STEP and a.origin != b.origin:
        return f"{a.origin or 'an unknown step'} against {b.origin or 'an unknown step'}"
    return NOT_EQUAL_WORK if unequal_work and time_like(a.unit) else ""


def _order(line: Line) -> tuple[Any, ...]:
    kind = 4 if line.equal else 3 if line.only_in else 2 if line.refused else 0
    unbounded = kind == 0 and line.relative is None
    return (kind, not unbounded, -size_of(line.relative))
