"""The order in which one pipeline rank runs forward and backward passes, and what is in flight.

Source: `get_pp_rank_microbatches`, `get_schedule_table` and the three schedules of megatron-core
0.16.1 (pipeline_parallel/schedules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Pass(NamedTuple):
    """One forward or backward pass of micro-batch `microbatch` through chunk `chunk`."""

    forward: bool
    microbatch: int
    chunk: int


class Moment(NamedTuple):
    """A pass, and how many micro-batches each chunk holds while it runs, itself included."""

    forward: bool
    chunk: int
    in_flight: tuple[int, ...]


class Sizes(NamedTuple):
    """What a schedule depends on besides the stage: pipeline stages, chunks of each, micro-batches.

    `group` is `microbatch_group_size_per_vp_stage`, by default the number of stages; `extra` is 1
    with `overlap_moe_expert_parallel_comm`.
    """

    stages: int
    chunks: int
    microbatches: int
    group: int
    extra: int = 0


def warmup_passes(sizes: Sizes, stage: int) -> int:
    """Forward passes of a rank before its first backward pass.

    1F1B: p − 1 − r. Interleaved: 2(p − 1 − r) + (v − 1) · group + extra. Without a pipeline: 0.
    """
    if sizes.stages == 1:
        return 0
    if sizes.chunks == 1:
        warmup = sizes.stages - stage - 1
    else:
        warmup = 2 * (sizes.stages - stage - 1) + (sizes.chunks - 1) * sizes.group + sizes.extra
    return min(warmup, sizes.microbatches * sizes.chunks)


def passes(sizes: Sizes, stage: int) -> Iterator[Pass]:
    """Every pass of one rank in one step, in order: warm-up, 1F1B, cool-down.

    >>> [int(p.forward) for p in passes(Sizes(2, 1, 2, 2), stage=0)]
    [1, 1, 0, 0]
    """
    order = list(_table(sizes))
    warmup = warmup_passes(sizes, stage)
    forward = [Pass(True, microbatch, chunk) for microbatch, chunk in order]
    backward = [Pass(False, microbatch, sizes.chunks - 1 - chunk) for microbatch, chunk in order]
    yield from forward[:warmup]
    for ahead, behind in zip(forward[warmup:], backward, strict=False):
        yield ahead
        yield behind
    yield from backward[len(forward) - warmup :]


def enough_microbatches(sizes: Sizes) -> int:
    """So many micro-batches show every moment: the steady part of a schedule repeats.

    More than fill the pipeline twice add none; an incomplete last group stays.
    """
    enough = 2 * sizes.group * (2 * sizes.stages // sizes.group + 2)
    return min(sizes.microbatches, enough + sizes.microbatches % sizes.group)


def shortened(sizes: Sizes) -> Sizes:
    """The same schedule with no more micro-batches than show every moment."""
    return sizes._replace(microbatches=enough_microbatches(sizes))


@lru_cache(maxsize=16384)
def moments(sizes: Sizes, stage: int) -> tuple[Moment, ...]:
    """The moments of a step at which memory can peak: none holds less of all than another.

    Those of `shortened` sizes are the same, and sooner found.

    >>> [moment.in_flight for moment in moments(Sizes(4, 1, 8, 4), stage=1)]
    [(3,), (3,)]
    """
    held = [0] * sizes.chunks
    found: dict[tuple[bool, int], set[tuple[int, ...]]] = {}
    for one in passes(sizes, stage):
        held[one.chunk] += one.forward
        found.setdefault((one.forward, one.chunk), set()).add(tuple(held))
        held[one.chunk] -= not one.forward
    return tuple(
        Moment(forward, chunk, counts)
        for (forward, chunk), sets in found.items()
        for counts in sorted(_undominated(sets))
    )


def _undominated(found: set[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Those of the counts that are not at most another in every chunk."""
    for counts in found:
        if not any(
            other != counts and all(a >= b for a, b in zip(other, counts, strict=True))
            for other in found
        ):
            yield counts


def _table(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """(micro-batch, chunk) in the order of forward passes: a group of micro-batches at a time."""
    for first in range(0, sizes.microbatches, sizes.group):
        members = range(first, min(first + sizes.group, sizes.microbatches))
        yield from ((microbatch, chunk) for chunk in range(sizes.chunks) for microbatch in members)
