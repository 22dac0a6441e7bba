"""One pipeline stage's memory: what lasts, and the peak that its schedule of passes reaches.

All ranks of a stage run the same program on the same sizes, so one stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from steptally.job import Device, Job
from steptally.predict.memory.buffers import Buffers, chunk_buffers, chunk_weights
from steptally.predict.memory.chunk import Segment, chunk_footprint, chunk_segments
from steptally.predict.memory.dimensions import Dimensions, dimensions
from steptally.predict.memory.lasting import lasting_lines
from steptally.predict.memory.operation import Footprint
from steptally.predict.memory.resident import (
    Line,
    gradient_line,
    optimizer_lines,
    parameter_line,
)
from steptally.predict.memory.schedule import Moment, moments
from steptally.predict.precision import gradient_dtype
from steptally.predict.stages import Chunk, model_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The parts of one stage's account, in bytes of any one of its ranks.

    `lines` last through a later step; `moment` is the pass at which the peak is reached, and
    `activation_peak` what activations and temporaries need then.
    """

    stage: int
    chunks: tuple[Chunk, ...]
    segments: tuple[tuple[Segment, ...], ...]
    footprints: tuple[Footprint, ...]
    lines: tuple[Line, ...]
    moment: Moment
    activation_peak: int
    optimizer_temporary: int

    @property
    def lasting(self) -> int:
        """Bytes that are alive all through a later step."""
        return int(sum(line.bytes for line in self.lines))

    @property
    def first_step_lasting(self) -> int:
        """The same in the first step, before the optimizer has made its moments."""
        moments = sum(line.bytes for line in self.lines if is_moment(line))
        return self.lasting - int(moments)

    @property
    def peak(self) -> int:
        """The most that is allocated at once in a later step."""
        return self.lasting + max(self.activation_peak, self.optimizer_temporary)

    @property
    def first_step_peak(self) -> int:
        """The most that is allocated at once until the first optimizer step ends."""
        return max(
            self.first_step_lasting + self.activation_peak, self.lasting + self.optimizer_temporary
        )


def is_moment(line: Line) -> bool:
    """Whether the optimizer makes this in its first step, rather than the model before it."""
    return line.lifetime == "resident" and not line.name.startswith(("parameters", "main"))


def all_stages(job: Job, device: Device | None = None) -> list[StageMemory]:
    """The memory of every pipeline stage, first to last."""
    sizes = dimensions(job)
    chunks = model_chunks(job)
    return [
        stage_memory(job, sizes, tuple(chunk for chunk in chunks if chunk.pp == stage), device)
        for stage in range(job.layout.pipeline_model_parallel_size)
    ]


def stage_memory(
    job: Job, sizes: Dimensions, chunks: tuple[Chunk, ...], device: Device | None = None
) -> StageMemory:
    """The memory of the ranks that hold `chunks`, by virtual stage."""
    segments = tuple(tuple(chunk_segments(job, sizes, chunk)) for chunk in chunks)
    footprints = tuple(chunk_footprint(sizes, parts) for parts in segments)
    lines = lasting(job, sizes, chunks, device)
    moment, activation_peak = worst_moment(footprints, stage_moments(job, chunks))
    buffers = pipeline_buffers(job, sizes, chunks)
    return StageMemory(
        stage=chunks[0].pp,
        chunks=chunks,
        segments=segments,
        footprints=footprints,
        lines=(*lines, buffers),
        moment=moment,
        activation_peak=activation_peak,
        optimizer_temporary=optimizer_temporary(job, lines),
    )


def lasting(
    job: Job, sizes: Dimensions, chunks: Sequence[Chunk], device: Device | None
) -> list[Line]:
    """Resident state, gradient buffers and workspaces of all chunks together."""
    runs = [chunk_weights(job, sizes, chunk) for chunk in chunks]
    buffers = joined_buffers(
        [chunk_buffers(job, part, chunk) for part, chunk in zip(runs, chunks, strict=True)]
    )
    weights = list(chain.from_iterable(runs))
    return [
        parameter_line(job, buffers),
        *optimizer_lines(job, buffers),
        gradient_line(job, buffers),
        *lasting_lines(job, sizes, chunks, weights, device),
    ]


def joined_buffers(parts: Sequence[Buffers]) -> Buffers:
    """The buffers of several chunks, added up."""
    return Buffers(
        dense=sum(part.dense for part in parts),
        expert=sum(part.expert for part in parts),
        vectors=sum(part.vectors for part in parts),
        dense_padded=sum(part.dense_padded for part in parts),
        expert_padded=sum(part.expert_padded for part in parts),
    )


def stage_moments(job: Job, chunks: Sequence[Chunk]) -> tuple[Moment, ...]:
    """The moments of this stage's schedule at which memory can peak."""
    layout = job.layout
    stages = layout.pipeline_model_parallel_size
    return moments(
        stages=stages,
        stage=chunks[0].pp,
        chunks=len(chunks),
        microbatches=layout.num_microbatches,
        group=layout.microbatch_group_size_per_vp_stage or stages,
        extra=int(job.recipe.overlap_moe_expert_parallel_comm and len(chunks) > 1),
    )


def worst_moment(
    footprints: Sequence[Footprint], candidates: Sequence[Moment]
) -> tuple[Moment, int]:
    """The moment that needs most: every micro-batch in flight, and the pass that runs."""
    return max(
        ((moment, moment_bytes(footprints, moment)) for moment in candidates),
        key=lambda candidate: candidate[1],
    )


def moment_bytes(footprints: Sequence[Footprint], moment: Moment) -> int:
    """Activations of all in flight but the running pass's own, and that pass's peak."""
    running = footprints[moment.chunk]
    waiting = sum(
        count * part.saved for count, part in zip(moment.in_flight, footprints, strict=True)
    )
    peak = running.forward_peak if moment.forward else running.backward_peak
    return int(waiting - running.saved + peak)


def pipeline_buffers(job: Job, sizes: Dimensions, chunks: Sequence[Chunk]) -> Line:
    """Tensors of the residual stream that the schedule holds for its neighbours.

    1F1B: the input's gradient of the micro-batch before, which went to the stage before.
    Interleaved: also the next input and the next gradient, received ahead.
    """
    if job.layout.pipeline_model_parallel_size == 1:
        held = 0
    elif len(chunks) > 1:
        held = 3
    else:
        held = 0 if chunks[0].embedding else 1
    return Line("transient", "pipeline send and receive buffers", held * sizes.hidden_bytes)


def optimizer_temporary(job: Job, lines: Sequence[Line]) -> int:
    """fp32 copies of 16-bit main gradients, which the optimizer step makes of what it updates."""
    if gradient_dtype(job) == "fp32" or job.recipe.use_precision_aware_optimizer:
        return 0
    return next((line.bytes for line in lines if line.name.startswith("main parameters")), 0)
