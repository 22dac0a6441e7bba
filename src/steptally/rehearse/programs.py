"""Which ranks execute the same program, so that each program is rehearsed once.

Ranks of a pipeline stage do the same work on other data, with two exceptions: windows make the
attention of context-parallel ranks unequal, and uneven routing, or tokens that do not divide, the
load of expert-parallel ones.
Rank lists are megatron-core's own (`parallel_state.RankGenerator`).
"""

from __future__ import annotations

from collections.abc import Mapping

from megatron.core.parallel_state import RankGenerator

from steptally.errors import InputError
from steptally.job import Job
from steptally.rehearse.rehearsed import Program
from steptally.rehearse.routing import Routing


def distinct_programs(job: Job, routing: Routing) -> list[Program]:
    """Every program of the job, by pipeline stage and first rank."""
    dense, expert = dense_ranks(job), expert_ranks(job)
    dense_axes = ["pp"] + (["cp"] if _context_ranks_differ(job) else [])
    stage_of = _coordinate(dense, "pp")
    keys: list[Mapping[int, object]] = [_coordinate(dense, axis) for axis in dense_axes]
    if job.architecture.num_experts:
        loads = _loads(job, routing)
        keys.append({rank: loads[at] for rank, at in _coordinate(expert, "ep").items()})
    members: dict[tuple[object, ...], list[int]] = {}
    for rank in range(job.layout.world_size):
        members.setdefault(tuple(key[rank] for key in keys), []).append(rank)
    programs = [
        Program(rank=ranks[0], ranks=tuple(ranks), pp=stage_of[ranks[0]])
        for ranks in members.values()
    ]
    return sorted(programs, key=lambda program: (program.pp, program.rank))


def program_of(job: Job, rank: int, routing: Routing) -> Program:
    """The program of one rank. Raises `InputError` for a rank that the job does not have."""
    for program in distinct_programs(job, routing):
        if rank in program.ranks:
            return Program(rank=rank, ranks=program.ranks, pp=program.pp)
    raise InputError(
        f"rank is {rank}, but the job has {job.layout.world_size} ranks: use 0 to "
        f"{job.layout.world_size - 1}."
    )


def dense_ranks(job: Job) -> RankGenerator:
    """Megatron's order of ranks over tensor, context, data and pipeline parallelism."""
    layout = job.layout
    return RankGenerator(
        tp=layout.tensor_model_parallel_size,
        ep=1,
        dp=layout.data_parallel_size,
        pp=layout.pipeline_model_parallel_size,
        cp=layout.context_parallel_size,
        order=layout.order,
    )


def expert_ranks(job: Job) -> RankGenerator:
    """Megatron's order over expert tensor, expert, expert data and pipeline parallelism."""
    layout = job.layout
    shards = layout.expert_tensor_parallel_size * layout.expert_model_parallel_size
    return RankGenerator(
        tp=layout.expert_tensor_parallel_size,
        ep=layout.expert_model_parallel_size,
        dp=layout.world_size // (shards * layout.pipeline_model_parallel_size),
        pp=layout.pipeline_model_parallel_size,
        cp=1,
        order=layout.order,
    )


def _coordinate(generator: RankGenerator, axis: str) -> dict[int, int]:
    """Each rank's place on an axis: its index in its group along that axis."""
    return {rank: index for ranks in generator.get_ranks(axis) for index, rank in enumerate(ranks)}


def _loads(job: Job, routing: Routing) -> list[tuple[int, ...]]:
    """What each expert-parallel rank's own experts get from one rank's tokens."""
    layout, experts = job.layout, job.architecture.num_experts or 1
    tokens = layout.micro_batch_size * layout.seq_length // layout.context_parallel_size
    if layout.sequence_parallel:
        tokens //= layout.tensor_model_parallel_size
    copies, split = tokens * job.architecture.moe_router_topk, job.layout.expert_model_parallel_size
    dealt = routing.tokens_per_expert(copies, experts, tokens, split)
    each = experts // layout.expert_model_parallel_size
    return [dealt[first : first + each] for first in range(0, experts, each)]


def _context_ranks_differ(job: Job) -> bool:
    """Halves from both ends of a sequence balance causal attention, but not windows or blocks."""
    local = job.architecture.window_size or job.architecture.attention_chunk_size
    split = job.layout.context_parallel_size > 1 and job.layout.cp_comm_type != "a2a"
    return bool(local and split)
