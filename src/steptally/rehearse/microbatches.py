"""How many micro-batches are rehearsed, and what those of the whole step come to.

From some number on, each further micro-batch adds the same products and collectives to every rank
and nothing to its peak. Two such numbers are rehearsed and the job's is extrapolated, exactly:
all counts are linear in between and beyond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import TypeVar

from steptally.engine.stages import virtual_stages
from steptally.errors import SteptallyError
from steptally.job import Job
from steptally.rehearse.accounts import Counts

Key = TypeVar("Key", bound=Hashable)


def rehearsed_counts(job: Job) -> tuple[int, ...]:
    """The numbers of micro-batches to rehearse: the job's own, or two smaller ones.

    1F1B holds as many micro-batches as there are stages behind a rank; interleaved schedules deal
    them in groups.
    """
    layout = job.layout
    wanted, stages = layout.num_microbatches, layout.pipeline_model_parallel_size
    if virtual_stages(layout) is None:
        fewer, more = stages + 1, stages + 2
    else:
        group = layout.microbatch_group_size_per_vp_stage or stages
        if wanted % group:
            return (wanted,)
        fewer, more = 2 * group, 3 * group
    return (wanted,) if wanted <= fewer + more else (fewer, more)


def extrapolate(fewer: Counts, more: Counts, microbatches: int) -> Counts:
    """The counts of `microbatches`, from two numbers of them.

    Raises `SteptallyError` where they are not on a line, which would be a fault of this module.
    """
    step = more.microbatches - fewer.microbatches
    beyond = microbatches - more.microbatches

    def at(a: int, b: int) -> int:
        slope, rest = divmod(b - a, step)
        if rest or slope < 0:
            raise SteptallyError(
                f"counts {a} and {b} of {fewer.microbatches} and {more.microbatches} micro-batches "
                f"do not lie on a line of whole numbers: please report this job."
            )
        return b + slope * beyond

    def each(a: Mapping[Key, int], b: Mapping[Key, int]) -> dict[Key, int]:
        return {key: at(a.get(key, 0), value) for key, value in b.items()}

    if fewer.memory.peak_bytes != more.memory.peak_bytes:
        raise SteptallyError(
            f"the peak of {more.microbatches} micro-batches, {more.memory.peak_bytes} bytes, is "
            f"not that of {fewer.microbatches}, {fewer.memory.peak_bytes}: please report this job."
        )
    return dataclasses.replace(
        more,
        microbatches=microbatches,
        operators=at(fewer.operators, more.operators),
        products=each(fewer.products, more.products),
        collectives=each(fewer.collectives, more.collectives),
    )
