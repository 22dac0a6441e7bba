"""Two tallies line by line: predicted against measured, one run or layout against another.

>>> from steptally.tally import ParametersRow, Tally
>>> a = Tally(basis="predicted", accounts={"parameters": [
...     ParametersRow(name="linear_qkv", count=4, active=4)]})
>>> b = Tally(basis="rehearsed", accounts={"parameters": [
...     ParametersRow(name="linear_qkv", count=5, active=4)]})
>>> line = compare_tallies(a, b).accounts["parameters"][0].lines[0]
>>> line.quantity, line.a, line.b, line.difference, line.relative
('count', 4, 5, 1, 0.25)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Any

from steptally.errors import InputError, did_you_mean
from steptally.tally.compare_account import Section, compare_sections
from steptally.tally.compare_figures import SUMMARY, compare_figures
from steptally.tally.equal_work import (
    SettingDifference,
    differing_settings,
    why_not_equal_work,
)
from steptally.tally.line import Line
from steptally.tally.rows import ROW_TYPES
from steptally.tally.tally import Tally

COMPARISON_SCHEMA = "steptally-compare/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that two tallies have in common, beside each other.

    `unequal_work` says why times and rates have no difference here; empty where both jobs do the
    same work. `only_in_a` and `only_in_b` are accounts that the other side has not.
    """

    a: Tally
    b: Tally
    names: tuple[str, str] = ("A", "B")
    settings: Sequence[SettingDifference] = ()
    unequal_work: Sequence[str] = ()
    figures: Sequence[Line] = ()
    accounts: Mapping[str, Sequence[Section]] = field(default_factory=dict)
    only_in_a: Sequence[str] = ()
    only_in_b: Sequence[str] = ()

    @property
    def sections(self) -> Iterator[Section]:
        """The sections of every account, in order."""
        return chain.from_iterable(self.accounts.values())

    @property
    def lines(self) -> Iterator[Line]:
        """Every line, totals included."""
        yield from self.figures
        for section in self.sections:
            yield from section.totals
            yield from section.lines

    @property
    def refusals(self) -> list[str]:
        """What is not compared, and why; each reason once."""
        return [
            f"{account}: {section.refused}"
            for account, sections in self.accounts.items()
            for section in sections
            if section.refused
        ]

    def beyond(self, percent: Fraction | int) -> list[Line]:
        """The lines that differ by more than `percent` of A's value, or are on one side alone."""
        return [line for line in self.lines if line.exceeds(Fraction(percent) / 100)]

    def as_json(self) -> dict[str, Any]:
        """The object that `steptally compare --json` prints; keys are in docs/schema.md."""
        return {
            "schema": COMPARISON_SCHEMA,
            **{side: self._side_as_json(side) for side in ("a", "b")},
            "settings": [setting.as_json() for setting in self.settings],
            "unequal_work": list(self.unequal_work),
            "summary": self.counts(),
            "figures": [line.as_json() for line in self.figures],
            "accounts": {
                name: [section.as_json() for section in sections]
                for name, sections in self.accounts.items()
            },
            "accounts_only_in": {"a": list(self.only_in_a), "b": list(self.only_in_b)},
            "refusals": self.refusals,
        }

    def counts(self) -> dict[str, int]:
        """How many lines there are of each kind, totals left aside."""
        lines = [*self.figures, *chain.from_iterable(one.lines for one in self.sections)]
        return {
            "lines_compared": sum(line.compared for line in lines),
            "lines_equal": sum(line.equal for line in lines),
            "lines_different": sum(line.compared and not line.equal for line in lines),
            "lines_only_in_a": sum(line.only_in == "A" for line in lines),
            "lines_only_in_b": sum(line.only_in == "B" for line in lines),
            "lines_refused": sum(bool(line.refused) for line in lines),
        }

    def _side_as_json(self, side: str) -> dict[str, Any]:
        tally: Tally = getattr(self, side)
        return {
            "source": self.names["ab".index(side)],
            "job": tally.job.get("name"),
            "basis": tally.basis,
            "convention": tally.convention,
        }


def compare_tallies(
    a: Tally,
    b: Tally,
    *,
    names: tuple[str, str] = ("A", "B"),
    accounts: Sequence[str] = (),
) -> Comparison:
    """Lay two tallies side by side: their figures, and every account that both have.

    `names` say where each came from. With `accounts`, only those; `summary` names the figures.
    Raises `InputError` for an account that is not known, or that a side lacks.
    """
    _require_in_both(a, b, accounts)
    settings = differing_settings(a.job, b.job) if a.job and b.job else []
    unequal = why_not_equal_work(a, b)
    shared = [name for name in a.accounts if name in b.accounts]
    wanted = [name for name in shared if not accounts or name in accounts]
    return Comparison(
        a=a,
        b=b,
        names=names,
        settings=settings,
        unequal_work=unequal,
        figures=compare_figures(a, b, unequal) if not accounts or SUMMARY in accounts else (),
        accounts={
            name: compare_sections(name, a, b, frozenset(one.name for one in settings), not unequal)
            for name in wanted
        },
        only_in_a=_beside(a, b, accounts),
        only_in_b=_beside(b, a, accounts),
    )


def _beside(one: Tally, other: Tally, accounts: Sequence[str]) -> list[str]:
    """Accounts of one side alone, unless only some were asked for."""
    return [] if accounts else [name for name in one.accounts if name not in other.accounts]


def _require_in_both(a: Tally, b: Tally, accounts: Iterable[str]) -> None:
    known = (SUMMARY, *ROW_TYPES)
    for name in accounts:
        if name not in known:
            raise InputError(
                f"account {name!r} is not known{did_you_mean(name, known)}: it must be one of "
                f"{', '.join(known)}."
            )
        lacking = [side for side, tally in (("A", a), ("B", b)) if name not in tally.accounts]
        if name != SUMMARY and lacking:
            shared = [other for other in a.accounts if other in b.accounts]
            raise InputError(
                f"account {name!r} is not in {' and not in '.join(lacking)}: what both have is "
                f"{', '.join((SUMMARY, *shared))}."
            )
