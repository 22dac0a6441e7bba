"""How many tokens reach the experts of one rank, under the stated assumption of balanced routing.

Each source rank spreads its tokens evenly over all experts; what does not divide evenly goes to the
first expert of each rank, then to the second, one token more each. Source of the capacity:
`get_capacity` (megatron-core 0.16.1, transformer/moe/moe_utils.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from steptally.errors import InputError
from steptally.job.job import Job
from steptally.predict.microbatch import shard_tokens

# Fp8Padding and SequentialMLP pad each expert's tokens to this many rows (get_fp8_align_size).
FP8_ROW_MULTIPLE = 16
MXFP8_ROW_MULTIPLE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """`experts` of a rank's experts multiply `rows` rows each, in one layer and micro-batch."""

    experts: int
    rows: int


def expert_capacity(job: Job) -> int | None:
    """Most tokens that one source rank sends to one expert; None where nothing is dropped.

    ⌈T · topk / E · capacity factor⌉ with T the tokens of the source rank.
    """
    factor = job.recipe.moe_expert_capacity_factor
    if factor is None:
        return None
    experts = _experts(job)
    return ceil(shard_tokens(job) * job.architecture.moe_router_topk / experts * factor)


def dispatched_rows(job: Job) -> int:
    """Token copies that a rank sends to experts, in one layer and micro-batch.

    T · topk; at most, or with padding exactly, capacity · E.
    """
    wanted = shard_tokens(job) * job.architecture.moe_router_topk
    capacity = expert_capacity(job)
    if capacity is None:
        return wanted
    slots = capacity * _experts(job)
    return slots if job.recipe.moe_pad_expert_input_to_capacity else min(wanted, slots)


def received_rows(job: Job) -> int:
    """Token copies that reach a rank's experts: what one rank sends, from each of etp ranks."""
    return dispatched_rows(job) * job.layout.expert_tensor_parallel_size


def expert_loads(job: Job) -> tuple[ExpertLoad, ...]:
    """Rows of each expert of a rank, equal experts together, heaviest first.

    Each source rank deals what does not divide to the first expert of every rank, then to the
    second; what is left of that is averaged over ranks. With FP8, Megatron pads the rows of each
    expert to a multiple of 16 (32 for MXFP8).
    """
    layout, experts = job.layout, _experts(job)
    local_experts = experts // layout.expert_model_parallel_size
    rows, rest = divmod(dispatched_rows(job), experts)
    extra, unequal = divmod(rest, layout.expert_model_parallel_size)
    sources = layout.expert_model_parallel_size * layout.expert_tensor_parallel_size
    loads = ((extra, sources * (rows + 1)), (local_experts - extra, sources * rows))
    if unequal:
        rows, extra = divmod(received_rows(job), local_experts)
        loads = ((extra, rows + 1), (local_experts - extra, rows))
    return tuple(
        ExpertLoad(experts=experts, rows=padded)
        for experts, count in loads
        if experts and (padded := _padded(job, count))
    )


def _padded(job: Job, rows: int) -> int:
    recipe = job.recipe
    if recipe.fp8 is None or recipe.transformer_impl != "transformer_engine":
        return rows
    multiple = MXFP8_ROW_MULTIPLE if recipe.fp8_recipe == "mxfp8" else FP8_ROW_MULTIPLE
    return -(-rows // multiple) * multiple


def _experts(job: Job) -> int:
    if job.architecture.num_experts is None:
        raise InputError(f"job {job.name} has no experts: state num_experts.")
    return job.architecture.num_experts
