"""One pipeline stage's memory: what lasts, and the peak that its schedule of passes reaches.

All ranks of a stage run the same program on the same sizes, so one stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from operator import mul
from typing import NamedTuple

from steptally.job import Device, Job
from steptally.predict.memory.buffers import Buffers, Runs, chunk_buffers, chunk_weights
from steptally.predict.memory.chunk import Segment, chunk_footprint, chunk_segments
from steptally.predict.memory.dimensions import Dimensions, dimensions
from steptally.predict.memory.lasting import lasting_lines, quantized_elements
from steptally.predict.memory.layer import layer_operations
from steptally.predict.memory.operation import Footprint
from steptally.predict.memory.program import Program, stage_programs
from steptally.predict.memory.resident import (
    Line,
    gradient_line,
    optimizer_lines,
    parameter_line,
)
from steptally.predict.memory.schedule import Moment, Sizes, moments, shortened
from steptally.predict.memory.weights import layer_weights
from steptally.predict.precision import gradient_dtype


class StageMemory(NamedTuple):
    """The parts of one stage's account, in bytes of any one of its ranks.

    `lines` last through a later step; `moment` is the pass at which the peak is reached, and
    `activation_peak` what activations and temporaries need then. The other two are what the
    optimizer step and a checkpoint save need for themselves, when no activation is alive.
    """

    stage: int
    programs: tuple[Program, ...]
    segments: tuple[Sequence[Segment], ...]
    footprints: tuple[Footprint, ...]
    lines: tuple[Line, ...]
    moment: Moment
    activation_peak: int
    optimizer_temporary: int
    checkpoint_temporary: int

    @property
    def parameter_bytes(self) -> int:
        """Of the parameters in the training dtype, which are the first line."""
        return int(self.lines[0].bytes)

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
    def checkpoint_peak(self) -> int:
        """The most that is allocated at once while a checkpoint is saved, between two steps."""
        return self.lasting + self.checkpoint_temporary

    @property
    def first_step_peak(self) -> int:
        """The most that is allocated at once until the first optimizer step ends."""
        return max(
            self.first_step_lasting + self.activation_peak, self.lasting + self.optimizer_temporary
        )


def is_moment(line: Line) -> bool:
    """Whether the optimizer makes this in its first step, rather than the model before it."""
    return line.lifetime == "resident" and not line.name.startswith(("parameters", "main"))


class Common(NamedTuple):
    """What stages of equal programs have in common, wherever they stand in the pipeline."""

    segments: tuple[Sequence[Segment], ...]
    footprints: tuple[Footprint, ...]
    lines: tuple[Line, ...]
    optimizer_temporary: int
    checkpoint_temporary: int


class ChunkMemory(NamedTuple):
    """What one program keeps and needs: activations by segment, tensors, buffers."""

    segments: Sequence[Segment]
    footprint: Footprint
    weights: Runs
    buffers: Buffers


def all_stages(job: Job, device: Device | None = None) -> list[StageMemory]:
    """The memory of every pipeline stage, first to last; each distinct program is worked out once.

    `device` decides how large cuBLAS workspaces and FP8 copies are; without one, as on Hopper.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128, "pipeline_model_parallel_size": 2})
    >>> [stage.moment.in_flight for stage in all_stages(job)]
    [(1,), (1,)]
    """
    sizes = dimensions(job)
    layer = cache(partial(layer_operations, sizes))
    weights = cache(partial(layer_weights, sizes))

    @cache
    def chunk(program: Program) -> ChunkMemory:
        segments = chunk_segments(job, sizes, program, layer)
        tensors = chunk_weights(job, sizes, program, weights)
        return ChunkMemory(
            segments,
            chunk_footprint(sizes, segments),
            tensors,
            chunk_buffers(job, tensors, program),
        )

    @cache
    def common(programs: tuple[Program, ...]) -> Common:
        chunks = [chunk(program) for program in programs]
        lines = lasting(job, sizes, programs, chunks, device)
        return Common(
            tuple(part.segments for part in chunks),
            tuple(part.footprint for part in chunks),
            lines,
            optimizer_temporary(job, lines),
            checkpoint_temporary(job, [part.buffers for part in chunks]),
        )

    stages = stage_programs(job)
    schedule = shortened(schedule_sizes(job, len(stages[0])))
    return [
        stage_memory(stage, programs, common(programs), moments(schedule, stage))
        for stage, programs in enumerate(stages)
    ]


def stage_memory(
    stage: int, programs: tuple[Program, ...], common: Common, candidates: Sequence[Moment]
) -> StageMemory:
    """The memory of the ranks of one stage, from what they hold and the moments they pass."""
    moment, activation_peak = worst_moment(common.footprints, candidates)
    return StageMemory(
        stage=stage,
        programs=programs,
        segments=common.segments,
        footprints=common.footprints,
        lines=common.lines,
        moment=moment,
        activation_peak=activation_peak,
        optimizer_temporary=common.optimizer_temporary,
        checkpoint_temporary=common.checkpoint_temporary,
    )


def lasting(
    job: Job,
    sizes: Dimensions,
    programs: Sequence[Program],
    chunks: Sequence[ChunkMemory],
    device: Device | None,
) -> tuple[Line, ...]:
    """Resident state, gradient buffers and workspaces of a rank's chunks together."""
    buffers = joined_buffers([chunk.buffers for chunk in chunks])
    weights = [run for chunk in chunks for run in chunk.weights]
    return (
        parameter_line(job, buffers, quantized_elements(job, weights)),
        *optimizer_lines(job, buffers),
        gradient_line(job, buffers),
        *lasting_lines(job, sizes, programs, weights, device),
        pipeline_buffers(job, sizes, programs),
    )


def joined_buffers(parts: Sequence[Buffers]) -> Buffers:
    """The buffers of several chunks, added up."""
    return Buffers(
        dense=sum(part.dense for part in parts),
        expert=sum(part.expert for part in parts),
        vectors=sum(part.vectors for part in parts),
        dense_padded=sum(part.dense_padded for part in parts),
        expert_padded=sum(part.expert_padded for part in parts),
        dense_shards=parts[0].dense_shards,
        expert_shards=parts[0].expert_shards,
    )


def schedule_sizes(job: Job, chunks: int) -> Sizes:
    """What the schedule of a job with `chunks` virtual stages depends on."""
    layout = job.layout
    stages = layout.pipeline_model_parallel_size
    return Sizes(
        stages,
        chunks,
        layout.num_microbatches,
        layout.microbatch_group_size_per_vp_stage or stages,
        int(job.recipe.overlap_moe_expert_parallel_comm and chunks > 1),
    )


def worst_moment(
    footprints: Sequence[Footprint], candidates: Sequence[Moment]
) -> tuple[Moment, int]:
    """The moment that needs most, and how much: all in flight, and what the running pass adds."""
    saved = [part.saved for part in footprints]
    added = [
        (part.backward_peak - part.saved, part.forward_peak - part.saved) for part in footprints
    ]
    needs = [
        sum(map(mul, moment.in_flight, saved)) + added[moment.chunk][moment.forward]
        for moment in candidates
    ]
    most = max(needs)
    return candidates[needs.index(most)], int(most)


def pipeline_buffers(job: Job, sizes: Dimensions, programs: Sequence[Program]) -> Line:
    """Tensors of the residual stream that the schedule holds for its neighbours.

    1F1B: the input's gradient of the micro-batch before, which went to the stage before.
    Interleaved: also the next input and the next gradient, received ahead.
    """
    if job.layout.pipeline_model_parallel_size == 1:
        held = 0
    elif len(programs) > 1:
        held = 3
    else:
        held = 0 if programs[0].embedding else 1
    return Line("transient", "pipeline send and receive buffers", held * sizes.hidden_bytes)


def checkpoint_temporary(job: Job, buffers: Sequence[Buffers]) -> int:
    """What saving a checkpoint allocates on the device.

    Distributed checkpoints copy shards to the host as they are. With
    `dist_ckpt_optim_fully_reshardable` the optimizer state of a whole buffer (bucket, where
    gradients are reduced in buckets: this is the most) is gathered in fp32 beside the rank's shard.
    Source: `DistributedOptimizer.sharded_param_state_fully_reshardable`, megatron-core 0.16.1.
    """
    if not (
        job.recipe.use_distributed_optimizer and _stated(job, "dist_ckpt_optim_fully_reshardable")
    ):
        return 0
    if _stated(job, "distrib_optim_fully_reshardable_mem_efficient"):  # gathers over the CPU
        return 0
    most = 0
    for part in buffers:
        for elements, shards in (
            (part.dense_padded, part.dense_shards),
            (part.expert_padded, part.expert_shards),
        ):
            most = max(most, 4 * int(elements + elements // shards) * (shards > 1))
    return most


def optimizer_temporary(job: Job, lines: Sequence[Line]) -> int:
    """fp32 copies of 16-bit main gradients, which the optimizer step makes of what it updates."""
    if gradient_dtype(job) == "fp32" or job.recipe.use_precision_aware_optimizer:
        return 0
    return next((line.bytes for line in lines if line.name.startswith("main parameters")), 0)


def _stated(job: Job, flag: str) -> bool:
    """Whether a flag that no field of the job holds was given."""
    return str({**job.ignored, **job.unknown}.get(flag)).lower() == "true"
