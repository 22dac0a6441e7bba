"""One account of two tallies, line by line: what matters first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median
from typing import Any

from steptally.tally.compare_figures import NOT_EQUAL_WORK, time_like
from steptally.tally.equal_work import shown
from steptally.tally.identities import IDENTITIES
from steptally.tally.identity import Entry, Identity, Quantity
from steptally.tally.line import Line, Value, difference, relative
from steptally.tally.matching import Key, Matched, SideRows, match
from steptally.tally.order import in_order, with_shares
from steptally.tally.tally import Tally

MOST_WORDS = 3
JOIN: dict[str, Callable[[Sequence[Any]], Any]] = {
    "sum": sum,
    "max": max,
    "median": lambda values: _middle(values),
}
Joined = Mapping[Key, Sequence[Entry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The lines of one kind of an account, matched by `keys`; `notes` say how.

    `totals` are over all of them, in what adds up. `refused` says why nothing is compared.
    """

    account: str
    basis: tuple[str, str]
    keys: tuple[str, ...] = ()
    totals: Sequence[Line] = ()
    lines: Sequence[Line] = ()
    notes: Sequence[str] = ()
    refused: str = ""

    def as_json(self) -> dict[str, Any]:
        """The section as documented in docs/schema.md."""
        return {
            "matched_by": list(self.keys),
            "basis": {"a": self.basis[0], "b": self.basis[1]},
            "notes": list(self.notes),
            "refused": self.refused or None,
            "totals": [line.as_json() for line in self.totals],
            "lines": [line.as_json() for line in self.lines],
        }


def compare_sections(
    account: str, a: Tally, b: Tally, differing: frozenset[str], equal_work: bool
) -> list[Section]:
    """Every kind of line of an account that both tallies hold.

    `differing` are the names of settings that the jobs differ in.
    """
    return [
        _Comparing(account, identity, a, b, equal_work).section(differing)
        for identity in IDENTITIES[account]
    ]


@dataclass(frozen=True, slots=True)
class _Comparing:
    """One kind of line of one account of two tallies."""

    account: str
    identity: Identity
    a: Tally
    b: Tally
    equal_work: bool

    def section(self, differing: frozenset[str]) -> Section:
        basis = (self.a.basis_of(self.account), self.b.basis_of(self.account))
        a, b = self._rows_of(self.a), self._rows_of(self.b)
        found = match(self.identity, a, b, differing)
        section = Section(account=self.account, basis=basis, keys=found.keys, notes=found.notes)
        if found.refused:
            return replace(section, refused=found.refused)
        quantities, notes = self._known_in_both(found)
        joined = _by_line(found, found.a), _by_line(found, found.b)
        lines = list(self._lines(quantities, found, *joined))
        totals = [self._total(one, found) for one in quantities if one.combine == "sum"]
        totals = [line for line in totals if (line.a, line.b) != (None, None)]
        return replace(
            section,
            lines=in_order(with_shares(lines, quantities), quantities),
            totals=totals if len(lines) > len(quantities) else (),
            notes=(*found.notes, *notes, *self._left_out(a, b)),
        )

    def _left_out(self, a: SideRows, b: SideRows) -> list[str]:
        rows = sum(len(tally.accounts[self.account]) for tally in (self.a, self.b))
        some = len(a.entries) + len(b.entries) < rows
        return [self.identity.entries_note] if some and self.identity.entries_note else []

    def _rows_of(self, tally: Tally) -> SideRows:
        layout = tally.job.get("layout")
        world_size = layout.get("world_size") if isinstance(layout, Mapping) else None
        return SideRows(
            entries=list(self.identity.entries(tally.accounts[self.account])),
            basis=tally.basis_of(self.account),
            world_size=world_size if isinstance(world_size, int) else None,
        )

    def _known_in_both(self, found: Matched) -> tuple[list[Quantity], list[str]]:
        """What both sides fill, and a sentence about what one of them never does."""
        both, one_sided = [], []
        for quantity in self.identity.quantities:
            known = [
                not side or any(quantity.of(entry) is not None for entry in side)
                for side in (found.a, found.b)
            ]
            if all(known):
                both.append(quantity)
            elif any(known):
                one_sided.append(f"{quantity.name} is in {'A' if known[0] else 'B'} alone")
        return both, one_sided

    def _lines(
        self, quantities: Sequence[Quantity], found: Matched, a: Joined, b: Joined
    ) -> Iterator[Line]:
        for key in dict.fromkeys((*a, *b)):
            told: dict[str, Any] = {
                "key": dict(zip(found.keys, key, strict=True)),
                "only_in": "B" if key not in a else "A" if key not in b else "",
                "words": self._words(found, a.get(key, ()), b.get(key, ())),
            }
            for quantity in quantities:
                values = [_joined(quantity, side.get(key, ())) for side in (a, b)]
                if values != [None, None]:
                    yield self._line(quantity, *values, **told)

    def _total(self, quantity: Quantity, found: Matched) -> Line:
        a, b = (_joined(quantity, side) if side else 0 for side in (found.a, found.b))
        return self._line(quantity, a, b)

    def _line(self, quantity: Quantity, a: Value, b: Value, **told: Any) -> Line:
        line = Line(
            account=self.account,
            quantity=quantity.name,
            unit=quantity.unit,
            a=a,
            b=b,
            counts=self.identity.absent_is_zero,
            basis=(self.a.basis_of(self.account), self.b.basis_of(self.account)),
            **told,
        )
        if line.only_in:
            return line
        refused = self._why_not(quantity, a, b)
        if refused:
            return replace(line, refused=refused)
        return replace(line, difference=difference(a, b), relative=relative(a, b))

    def _why_not(self, quantity: Quantity, a: Value, b: Value) -> str:
        lacking = [side for side, value in (("A", a), ("B", b)) if value is None]
        if lacking:
            return f"not known in {' and '.join(lacking)}"
        if quantity.under_convention and self.a.convention != self.b.convention:
            return f"convention {self.a.convention!r} against {self.b.convention!r}"
        return NOT_EQUAL_WORK if time_like(quantity.unit) and not self.equal_work else ""

    def _words(
        self, found: Matched, a: Sequence[Entry], b: Sequence[Entry]
    ) -> dict[str, tuple[str, str]]:
        """What both sides say of a line in words, where they do not say the same."""
        said = {
            name: (_said(a, name), _said(b, name))
            for name in (*found.dropped, *self.identity.words)
        }
        return {name: both for name, both in said.items() if all(both) and both[0] != both[1]}


def _by_line(found: Matched, entries: Iterable[Entry]) -> Joined:
    joined: dict[Key, list[Entry]] = defaultdict(list)
    for entry in entries:
        joined[found.key_of(entry)].append(entry)
    return joined


def _joined(quantity: Quantity, entries: Iterable[Entry]) -> Any:
    """One value of the entries that fall on one line; a sum needs each of them."""
    values = [quantity.of(entry) for entry in entries]
    known = [value for value in values if value is not None]
    if not known or (quantity.combine == "sum" and len(known) < len(values)):
        return None
    return JOIN[quantity.combine](known)


def _middle(values: Iterable[int | float]) -> int | float:
    """The median; of counts it is a count where it is whole."""
    exact = median(map(Fraction, values))
    if exact.denominator == 1:
        return exact.numerator
    return float(exact) if abs(exact) < 2**1000 else round(exact)  # beyond every float


def _said(entries: Iterable[Entry], name: str) -> str:
    """The different words of some entries, a few of them."""
    values = [entry[name] for entry in entries if entry[name] not in (None, "")]
    words = sorted(dict.fromkeys(map(shown, values)))
    more = len(words) - MOST_WORDS
    return ", ".join(words[:MOST_WORDS]) + (f" and {more} more" if more > 0 else "")
