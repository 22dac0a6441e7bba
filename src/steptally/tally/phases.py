"""Phases that only one side tells apart are counted together on both.

A prediction knows the two products of a backward pass, a recording only that it was backward; a
recording knows that a collective was issued outside autograd, not for what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from steptally.tally.identity import Entry
from steptally.tally.rows import GEMM_PHASES, TRAFFIC_PHASES

# A phase that is the sum of others, where its side does not have them.
PARTS = {
    "backward": ("dgrad", "wgrad", "recompute"),
    "step": ("forward", "backward", "dgrad", "wgrad", "recompute"),
}
# A phase that says less than others: it can be any of them that its side does not show there.
MAY_BE = {
    "outside autograd": ("forward", "backward", "gradients", "optimizer", "logging"),
    "unknown": (*TRAFFIC_PHASES, *GEMM_PHASES),
}


def merge_phases(
    a: Sequence[Entry], b: Sequence[Entry], beside: Callable[[Entry], Hashable]
) -> tuple[list[Entry], list[Entry], list[str]]:
    """Both sides with the coarser of their phases, and sentences about what was merged.

    `beside` is what else tells an entry's line: phases are merged among entries that share it.
    """
    renamed_a = {**_of_parts(a, b), **_of_possible(a, b, beside)}
    renamed_b = {**_of_parts(b, a), **_of_possible(b, a, beside)}
    notes = [*_sentences(renamed_a, "A", "B"), *_sentences(renamed_b, "B", "A")]
    return _renamed(a, renamed_a, beside), _renamed(b, renamed_b, beside), notes


# What an entry's phase becomes, by what it is beside (None: wherever it stands) and its phase.
Renaming = Mapping[tuple[Hashable, str], str]


def _of_parts(fine: Iterable[Entry], coarse: Iterable[Entry]) -> Renaming:
    """Phases of `fine` that are part of one that only `coarse` has."""
    has, knows = ({entry["phase"] for entry in side} for side in (fine, coarse))
    return {
        (None, part): whole
        for whole, parts in PARTS.items()
        if whole in knows and whole not in has
        for part in parts
        if part in has and part not in knows
    }


def _of_possible(
    fine: Iterable[Entry], coarse: Iterable[Entry], beside: Callable[[Entry], Hashable]
) -> Renaming:
    """Phases of `fine` that one of `coarse` may be, entry by entry of what they are beside."""
    has = {entry["phase"] for entry in fine}
    there, facing = _phases_by(fine, beside), _phases_by(coarse, beside)
    return {
        (place, phase): whole
        for place, phases in facing.items()
        for whole in MAY_BE
        if whole in phases and whole not in has
        for phase in MAY_BE[whole]
        if phase in there.get(place, ()) and phase not in phases
    }


def _phases_by(
    entries: Iterable[Entry], beside: Callable[[Entry], Hashable]
) -> dict[Hashable, set[str]]:
    found: dict[Hashable, set[str]] = defaultdict(set)
    for entry in entries:
        found[beside(entry)].add(entry["phase"])
    return found


def _renamed(
    entries: Iterable[Entry], renaming: Renaming, beside: Callable[[Entry], Hashable]
) -> list[Entry]:
    if not renaming:
        return list(entries)
    return [{**entry, "phase": _new_phase(entry, renaming, beside)} for entry in entries]


def _new_phase(entry: Entry, renaming: Renaming, beside: Callable[[Entry], Hashable]) -> str:
    phase: str = entry["phase"]
    return renaming.get((None, phase)) or renaming.get((beside(entry), phase)) or phase


def _sentences(renaming: Renaming, fine: str, coarse: str) -> list[str]:
    merged: dict[str, dict[str, None]] = defaultdict(dict)
    for (_, phase), whole in renaming.items():
        merged[whole][phase] = None
    return [
        f"{', '.join(phases)} of {fine} {'is' if len(phases) == 1 else 'are'} counted as "
        f"{whole!r}: {coarse} does not tell {'it' if len(phases) == 1 else 'them'} apart"
        for whole, phases in merged.items()
    ]
