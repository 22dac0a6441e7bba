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


def warmup_passes(
    *, stages: int, stage: int, chunks: int, microbatches: int, group: int, extra: int = 0
) -> int:
    """Forward passes of a rank before its first backward pass.

    1F1B: p − 1 − r. Interleaved: 2(p − 1 − r) + (v − 1) · group, and one more with
    `overlap_moe_expert_parallel_comm` (`extra`). Without a pipeline: 0.
    """
    if stages == 1:
        return 0
    if chunks == 1:
        warmup = stages - stage - 1
    else:
        warmup = 2 * (stages - stage - 1) + (chunks - 1) * group + extra
    return min(warmup, microbatches * chunks)


def passes(
    *, stages: int, stage: int, chunks: int, microbatches: int, group: int, extra: int = 0
) -> Iterator[Pass]:
    """Every pass of one rank in one step, in order: warm-up, 1F1B, cool-down.

    `group` is `microbatch_group_size_per_vp_stage`, by default the number of stages.

    >>> [int(p.forward) for p in passes(stages=2, stage=0, chunks=1, microbatches=2, group=2)]
    [1, 1, 0, 0]
    """
    order = list(_table(microbatches, chunks, group))
    warmup = warmup_passes(
        stages=stages,
        stage=stage,
        chunks=chunks,
        microbatches=microbatches,
        group=group,
        extra=extra,
    )
    forward = [Pass(True, microbatch, chunk) for microbatch, chunk in order]
    backward = [Pass(False, microbatch, chunks - 1 - chunk) for microbatch, chunk in order]
    yield from forward[:warmup]
    for ahead, behind in zip(forward[warmup:], backward, strict=False):
        yield ahead
        yield behind
    yield from backward[len(forward) - warmup :]


def moments(
    *, stages: int, stage: int, chunks: int, microbatches: int, group: int, extra: int = 0
) -> tuple[Moment, ...]:
    """The moments of a step at which memory can peak: none holds less of all than another.

    The steady part of a schedule repeats, so more micro-batches than fill the pipeline twice add
    no new moment.

    >>> [m.in_flight for m in moments(stages=4, stage=1, chunks=1, microbatches=8, group=4)]
    [(3,), (3,)]
    """
    enough = 2 * group * (2 * stages // group + 2)
    fewer = min(microbatches, enough + microbatches % group)
    return _moments(stages, stage, chunks, fewer, group, extra)


@lru_cache(maxsize=16384)
def _moments(
    stages: int, stage: int, chunks: int, microbatches: int, group: int, extra: int
) -> tuple[Moment, ...]:
    held = [0] * chunks
    found: dict[tuple[bool, int], set[tuple[int, ...]]] = {}
    for one in passes(
        stages=stages,
        stage=stage,
        chunks=chunks,
        microbatches=microbatches,
        group=group,
        extra=extra,
    ):
        held[one.chunk] += one.forward
        found.setdefault((one.forward, one.chunk), set()).add(tuple(held))
        held[one.chunk] -= not one.forward
    return tuple(
        Moment(forward, chunk, counts)
        for (forward, chunk), sets in found.items()
        for counts in sorted(_undominated(sets))
    )


def in_flight(*, stages: int, stage: int, microbatches: int) -> int:
    """Micro-batches whose activations a rank of 1F1B holds at most: min(m, p − r)."""
    return min(microbatches, stages - stage)


def _undominated(found: set[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Those of the counts that are not at most another in every chunk."""
    for counts in found:
        if not any(
            other != counts and all(a >= b for a, b in zip(other, counts, strict=True))
            for other in found
        ):
            yield counts


def _table(microbatches: int, chunks: int, group: int) -> Iterator[tuple[int, int]]:
    """(micro-batch, chunk) in the order of forward passes: a group of micro-batches at a time."""
    for first in range(0, microbatches, group):
        members = range(first, min(first + group, microbatches))
        yield from ((microbatch, chunk) for chunk in range(chunks) for microbatch in members)
