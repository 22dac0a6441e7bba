"""What a rank's memory is for and how long it lives, from when its storages were made and freed.

Lifetimes are those of the predicted account: `resident` through all steps, `iteration` (the main
gradients), `microbatch` (kept from a forward pass for its backward), `transient` (the rest). A
rehearsed step is a first step; of a later one the optimizer's state is there from the start, which
is derived here by moving it there. What torch's portable Adam allocates and frees while it updates
is left out: a GPU's fused optimizer makes none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steptally.rehearse.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from steptally.rehearse.purposes import MAIN_GRADIENT, PARAMETER

if TYPE_CHECKING:
    from steptally.rehearse.passes import Pass
    from steptally.rehearse.program import Rehearsal
    from steptally.rehearse.storages import Allocation

RESIDENT, ITERATION, MICROBATCH, TRANSIENT = "resident", "iteration", "microbatch", "transient"
LAYER, EXPERT = re.compile(r"^(decoder\.)?layers\.\d+\.?"), re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Held:
    """One storage with its purpose; `made` and `freed` are moments, `freed` None at the end."""

    lifetime: str
    name: str
    chunk: int | None
    size_bytes: int
    made: int
    freed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that is allocated at once: when, how much, and everything that lives then."""

    moment: int
    size_bytes: int
    held: tuple[Held, ...]


def held_storages(rehearsal: Rehearsal) -> list[Held]:
    """Every storage that lives in the step, but for what the update makes and frees again."""
    boundaries = [each.ended for each in rehearsal.passes]
    held = []
    for allocation in rehearsal.allocations:
        if allocation.freed is not None and allocation.freed <= rehearsal.step_began:
            continue
        purpose = _purpose(allocation, rehearsal, boundaries)
        if purpose is not None:
            lifetime, name = purpose
            made, freed = allocation.made, allocation.freed
            chunk = allocation.place.chunk
            held.append(Held(lifetime, name, chunk, allocation.size_bytes, made, freed))
    return held


def _purpose(
    allocation: Allocation, rehearsal: Rehearsal, boundaries: Sequence[int]
) -> tuple[str, str] | None:
    if allocation.lifetime == PARAMETER:
        return RESIDENT, "parameters"
    if allocation.lifetime == MAIN_GRADIENT:
        return ITERATION, "main gradients"
    lasts = allocation.freed is None
    if allocation.phase == OPTIMIZER:
        return (RESIDENT, "optimizer state") if lasts else None
    if allocation.made <= rehearsal.step_began:
        return RESIDENT, "buffers of modules"
    module = anywhere(allocation.place.module) or "between passes"
    if lasts:
        return TRANSIENT, f"{module}, kept from its first use"
    if allocation.phase in (BACKWARD, RECOMPUTE):
        return TRANSIENT, module
    # Made in a forward pass, or received before it: kept for backward if it outlives that pass.
    following = bisect_right(boundaries, allocation.made)
    outlives = following < len(boundaries) and (allocation.freed or 0) > boundaries[following]
    return (MICROBATCH if outlives and allocation.phase == FORWARD else TRANSIENT), module


def anywhere(module: str) -> str:
    """A module's path in any decoder layer, without the number of its expert.

    >>> anywhere("decoder.layers.3.mlp.linear_fc1"), anywhere("decoder.layers.3")
    ('mlp.linear_fc1', 'layer')
    """
    in_layer = LAYER.sub("", module)
    return EXPERT.sub(".*", in_layer) if in_layer or not module else "layer"


def peak(held: Iterable[Held], began: int, ended: int) -> Peak:
    """The peak of the moments `began` to `ended`."""
    held = [each for each in held if each.made <= ended]
    changes: Counter[int] = Counter()
    for each in held:
        changes[max(each.made, began)] += each.size_bytes
        if each.freed is not None:
            changes[max(each.freed, began)] -= each.size_bytes
    moment, most, now = began, 0, 0
    for when in sorted(changes):
        now += changes[when]
        if when <= ended and now > most:
            moment, most = when, now
    living = tuple(each for each in held if _lives(each, moment))
    return Peak(moment=moment, size_bytes=most, held=living)


def live_bytes(held: Iterable[Held], moment: int) -> int:
    """What is allocated at a moment."""
    return sum(each.size_bytes for each in held if _lives(each, moment))


def as_in_a_later_step(held: Iterable[Held], step_began: int) -> list[Held]:
    """The same storages, with the optimizer's state there from the start."""
    return [
        Held(each.lifetime, each.name, each.chunk, each.size_bytes, step_began, each.freed)
        if each.name == "optimizer state"
        else each
        for each in held
    ]


def in_flight(passes: Iterable[Pass], moment: int) -> tuple[int, ...]:
    """Micro-batches of each chunk whose forward has begun and whose backward has not ended."""
    counts: Counter[int] = Counter()
    for each in passes:
        counts[each.chunk] += each.kind == FORWARD and each.began <= moment
        counts[each.chunk] -= each.kind == BACKWARD and each.ended <= moment
    return tuple(counts[chunk] for chunk in sorted(counts))


def _lives(each: Held, moment: int) -> bool:
    return each.made <= moment and (each.freed is None or each.freed > moment)
