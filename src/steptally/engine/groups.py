"""Megatron's process groups from a job, where this rank stands in them, and its seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from steptally.engine.stages import stages_of, virtual_stages
from steptally.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCoordinates:
    """This rank's place in each dimension of parallelism, counted from 0."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int


def initialize_groups(job: Job) -> RankCoordinates:
    """Create every process group of the job's layout; torch.distributed must be initialised.

    Megatron's host-side copies of the data-parallel groups are left out: only checkpoints use them.
    """
    layout = job.layout
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        pipeline_model_parallel_size=layout.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=virtual_stages(layout),
        context_parallel_size=layout.context_parallel_size,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        # Without experts, Megatron's default (tp): one that differs restricts the rank order.
        expert_tensor_parallel_size=(
            layout.expert_tensor_parallel_size if job.architecture.num_experts else None
        ),
        num_distributed_optimizer_instances=layout.num_distributed_optimizer_instances,
        order=layout.order,
        get_embedding_ranks=_embedding_ranks(job),
        create_gloo_process_groups=False,
    )
    return rank_coordinates()


def _embedding_ranks(job: Job) -> Callable[[list[int]], list[int]] | None:
    """Which ranks of a pipeline hold the word embedding; None: the first and the last.

    Where a layout places multi-token prediction, its stage is one of them, and the last only with a
    tied head. Source: `get_embedding_ranks` of Megatron-LM's pretrain_gpt.py.
    """
    layout, architecture = job.layout, job.architecture
    if layout.pipeline_model_parallel_layout is None or not architecture.mtp_num_layers:
        return None
    stages = enumerate(stages_of(layout.pipeline_model_parallel_layout))
    predicting = next((index for index, layers in stages if "m" in layers), -1)
    places = {0, predicting % layout.pipeline_model_parallel_size}
    if not architecture.untie_embeddings_and_output_weights:
        places.add(layout.pipeline_model_parallel_size - 1)
    return lambda pipeline: [pipeline[place] for place in sorted(places)]


def rank_coordinates() -> RankCoordinates:
    """Where this rank stands, once the groups exist."""
    return RankCoordinates(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        cp=parallel_state.get_context_parallel_rank(),
        dp=parallel_state.get_data_parallel_rank(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        ep=parallel_state.get_expert_model_parallel_rank(),
        etp=parallel_state.get_expert_tensor_parallel_rank(),
    )


def seed_this_rank(seed: int) -> None:
    """Seed every generator as Megatron-LM does: stages differ, replicas agree.

    Megatron-LM adds 100 per pipeline stage (`megatron/training/initialize.py`); tensor and expert
    ranks get their own states inside Megatron's tracker.
    """
    stage_seed = seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(stage_seed)
    np.random.seed(stage_seed)  # Megatron-Core draws from the global generator
    torch.manual_seed(stage_seed)
    model_parallel_cuda_manual_seed(stage_seed)
