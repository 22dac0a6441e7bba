"""Which rows of two accounts are the same line: the keys both fill, the ranks both have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steptally.tally.identity import Entry, Identity
from steptally.tally.phases import merge_phases

MOST_LISTED = 4
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRows:
    """The rows of one side, and what their meaning rests on. `world_size`: None if unknown."""

    entries: Sequence[Entry]
    basis: str
    world_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Both sides' entries with the fields that tell a line. `refused`: why nothing is compared."""

    a: Sequence[Entry]
    b: Sequence[Entry]
    keys: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""

    def key_of(self, entry: Entry) -> Key:
        """What tells the line that an entry belongs to."""
        return _values(entry, self.keys)


def match(identity: Identity, a: SideRows, b: SideRows, differing: frozenset[str]) -> Matched:
    """The finest key that both sides fill, the ranks that both have, phases that both tell apart.

    `differing` are the names of settings that the two jobs differ in.
    """
    found = _with_common_ranks(identity, a, b)
    if found.refused:
        return found
    found = _with_finest_key(identity, found, a.basis == b.basis, differing)
    if "phase" in found.keys:
        beside = _reader(tuple(name for name in found.keys if name != "phase"))
        entries_a, entries_b, notes = merge_phases(found.a, found.b, beside)
        found = replace(found, a=entries_a, b=entries_b, notes=(*found.notes, *notes))
    return replace(found, refused=_why_unlike(identity, found, a.basis, b.basis))


def _with_finest_key(
    identity: Identity, found: Matched, same_basis: bool, differing: frozenset[str]
) -> Matched:
    """Names where both use the same words, sizes where both jobs cut the work alike."""
    keys, dropped, notes = list(found.keys), [], list(found.notes)
    for name in identity.names:
        if not _filled_in_both(found, name):
            continue
        if same_basis or _same_words(found, name):
            keys.append(name)
        else:
            dropped.append(name)
            notes.append(f"A and B use different words for {name}: lines are matched without it")
    sizes = [name for name in identity.sizes if _filled_in_both(found, name)]
    cut = sorted(identity.cut_by & differing)
    if not cut:
        keys += sizes
    elif sizes:
        dropped += sizes
        notes.append(f"the jobs differ in {_listed(cut)}: lines are matched without {_and(sizes)}")
    return replace(found, keys=tuple(keys), dropped=tuple(dropped), notes=tuple(notes))


def _with_common_ranks(identity: Identity, a: SideRows, b: SideRows) -> Matched:
    found = Matched(a=a.entries, b=b.entries, keys=identity.keys)
    if "rank" not in identity.keys or not (a.entries and b.entries):
        return found
    ranks_a, ranks_b = _values_of(a.entries, "rank"), _values_of(b.entries, "rank")
    without = replace(found, keys=tuple(name for name in identity.keys if name != "rank"))
    if None in ranks_a or None in ranks_b:
        return replace(without, refused=_why_not_summed(a, ranks_a, b, ranks_b))
    if ranks_a == ranks_b:
        return found
    words = f"A has {_ranks(ranks_a)}, B {_ranks(ranks_b)}"
    if identity.quantities[0].combine == "median":
        return replace(without, notes=(f"{words}: medians are over all of them",))
    common = ranks_a & ranks_b
    if not common:
        return replace(found, refused=f"no rank is in both: {words}")
    return replace(
        found,
        a=[entry for entry in a.entries if entry["rank"] in common],
        b=[entry for entry in b.entries if entry["rank"] in common],
        notes=(f"{words}: {_ranks(common)} compared, the others left out",),
    )


def _why_not_summed(a: SideRows, ranks_a: set[Any], b: SideRows, ranks_b: set[Any]) -> str:
    """A sum over ranks can be held against rows of every rank, not of some."""
    for name, side, ranks in (("A", a, ranks_a), ("B", b, ranks_b)):
        if None not in ranks and not _are_all(ranks, side.world_size):
            world = "an unknown number" if side.world_size is None else f"{side.world_size:,}"
            return f"one side names no ranks, and {name} holds {_ranks(ranks)} of {world}"
    return ""


def _are_all(ranks: set[int], world_size: int | None) -> bool:
    return len(ranks) == world_size and min(ranks) == 0 and max(ranks) == world_size - 1


def _why_unlike(identity: Identity, found: Matched, basis_a: str, basis_b: str) -> str:
    """On two bases, rows without one line in common are not the same thing under two names."""
    if basis_a == basis_b or not (found.a and found.b):
        return ""
    if {found.key_of(entry) for entry in found.a} & {found.key_of(entry) for entry in found.b}:
        return ""
    return f"no line of A ({basis_a}) and B ({basis_b}) has the same {_and(found.keys)}"


def _filled_in_both(found: Matched, name: str) -> bool:
    """Whether both sides say something under this field; a side without rows is no obstacle."""
    sides = (found.a, found.b)
    return all(not side or any(entry[name] not in (None, "") for entry in side) for side in sides)


def _same_words(found: Matched, name: str) -> bool:
    words = [_values_of(side, name) for side in (found.a, found.b) if side]
    return len(words) < 2 or words[0] == words[1]


def _values_of(entries: Iterable[Entry], name: str) -> set[Any]:
    return {entry[name] for entry in entries}


def _values(entry: Entry, names: Iterable[str]) -> Key:
    return tuple(entry[name] for name in names)


def _reader(names: tuple[str, ...]) -> Callable[[Entry], Key]:
    return lambda entry: _values(entry, names)


def _ranks(ranks: Iterable[Any]) -> str:
    known = sorted(ranks)
    if len(known) > MOST_LISTED:
        return f"{len(known):,} ranks"
    return f"rank{'s' * (len(known) > 1)} {', '.join(map(str, known))}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_LISTED
    return _and(names) if more <= 0 else f"{', '.join(names[:MOST_LISTED])} and {more} more"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
