"""The memory account of a job: what every rank holds at its peak, and what its device must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steptally.job import Device, Job
from steptally.predict.memory.contents import contents, peak_event
from steptally.predict.memory.outside import OUTSIDE, outside_lines
from steptally.predict.memory.ranks import ranks_in_words
from steptally.predict.memory.resident import Line
from steptally.predict.memory.stage import StageMemory, all_stages
from steptally.predict.memory.timeline import timeline
from steptally.predict.ranks import coordinates, rank_at
from steptally.tally import MemoryMomentRow, MemoryPeakRow, MemoryRow


class RankMemory(NamedTuple):
    """One rank: its stage's memory, and what its device holds beside it."""

    rank: int
    stage: StageMemory
    outside: tuple[Line, ...]

    @property
    def highest_peak(self) -> int:
        """Of the first step, every later one, and a checkpoint save."""
        stage = self.stage
        return max(stage.first_step_peak, stage.peak, stage.checkpoint_peak)

    @property
    def outside_bytes(self) -> int:
        """Beside what torch has allocated."""
        return int(sum(line.bytes for line in self.outside))

    @property
    def total_bytes(self) -> int:
        """What the device must have."""
        return self.highest_peak + self.outside_bytes


def predict_memory(
    job: Job, rank: int | None = None, device: Device | None = None
) -> list[MemoryRow]:
    """What is alive on a rank at its peak in a later step, by lifetime and name.

    Without `rank`: of the first rank of each pipeline stage, since all ranks of a stage are alike.
    Raises `InputError` for a rank that the job does not have, or a job that cannot be split.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128})
    >>> row = predict_memory(job)[0]
    >>> row.lifetime, row.name, row.bytes
    ('resident', 'parameters (fp32)', 437248)
    """
    return memory_rows(job, memory_of_ranks(job, rank, device))


def memory_of_ranks(
    job: Job, rank: int | None = None, device: Device | None = None
) -> list[RankMemory]:
    """The memory of one rank, or of the first of each stage."""
    stages = all_stages(job, device)
    if rank is not None:
        stage = stages[coordinates(job.layout, rank).pp]
        return [_rank_memory(job, stage, rank, device)]
    return [
        _rank_memory(job, stage, rank_at(job.layout, pp=stage.stage), device) for stage in stages
    ]


def memory_rows(job: Job, ranks: Sequence[RankMemory]) -> list[MemoryRow]:
    """The rows of some ranks: those outside come last of each."""
    return [
        MemoryRow(
            rank=one.rank,
            lifetime=lifetime,
            name=name,
            bytes=int(size),
            pp=one.stage.stage,
            vpp=vpp if len(one.stage.segments) > 1 else None,
            peak_bytes=one.stage.peak,
        )
        for one in ranks
        for lifetime, name, vpp, size in [
            *contents(job, one.stage),
            *((OUTSIDE, line.name, None, line.bytes) for line in one.outside),
        ]
    ]


def peak_rows(job: Job, ranks: Sequence[RankMemory]) -> list[MemoryPeakRow]:
    """The peaks of some ranks."""
    return [
        MemoryPeakRow(
            rank=one.rank,
            ranks=ranks_in_words(job.layout, one.stage.stage),
            pp=one.stage.stage,
            in_flight=one.stage.moment.in_flight,
            event=peak_event(job, one.stage),
            peak_bytes=one.stage.peak,
            first_step_peak_bytes=one.stage.first_step_peak,
            checkpoint_peak_bytes=one.stage.checkpoint_peak,
            outside_bytes=one.outside_bytes,
            total_bytes=one.total_bytes,
        )
        for one in ranks
    ]


def timeline_rows(job: Job, one: RankMemory) -> list[MemoryMomentRow]:
    """The events of a rank's first step, a later step, and a checkpoint save."""
    return [
        MemoryMomentRow(
            rank=one.rank,
            position=position,
            step=event.step,
            event=event.name,
            before_bytes=event.before,
            peak_bytes=event.peak,
            after_bytes=event.after,
            microbatch=event.microbatch,
            vpp=event.vpp,
        )
        for position, event in enumerate(timeline(job, one.stage))
    ]


def _rank_memory(job: Job, stage: StageMemory, rank: int, device: Device | None) -> RankMemory:
    return RankMemory(rank, stage, outside_lines(job, stage, device))
