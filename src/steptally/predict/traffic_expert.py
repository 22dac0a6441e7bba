"""What expert parallelism moves: tokens to their experts and back, counts, probabilities.

Routing is taken to be balanced (`predict.routing`). Sources, megatron-core 0.16.1:
transformer/moe/token_dispatcher.py, router.py and moe_utils.py.
"""

from __future__ import annotations

from dataclasses import replace

from steptally.job.job import Job
from steptally.predict.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    EXPERT,
    EXPERT_TENSOR,
    EXPERT_TENSOR_AND_MODEL,
    FORWARD,
    REDUCE_SCATTER,
    TENSOR_AND_CONTEXT,
    TENSOR_DATA_AND_CONTEXT,
    Collective,
    both_ways,
)
from steptally.predict.microbatch import shard_tokens
from steptally.predict.routing import dispatched_rows, received_rows

MOE = ("moe",)
FLAG = "overlap_moe_expert_parallel_comm"


def moe_collectives(job: Job) -> list[Collective]:
    """Collectives of one MoE layer's router and dispatcher, for one micro-batch."""
    dispatchers = {"alltoall": _all_to_all_dispatch, "allgather": _all_gather_dispatch}
    dispatch = dispatchers.get(job.recipe.moe_token_dispatcher_type)
    found = _balancing_loss(job) + (dispatch(job) if dispatch else [])
    return [replace(collective, modules=MOE) for collective in found]


def _probability_dtype(job: Job) -> str:
    """The router's logits, and so the probabilities, have `moe_router_dtype` where it is set."""
    return job.recipe.moe_router_dtype or job.recipe.params_dtype


def _width(job: Job) -> int:
    return job.architecture.moe_latent_size or job.architecture.hidden_size


def _all_to_all_dispatch(job: Job) -> list[Collective]:
    """Counts to all, tokens and probabilities to the experts' ranks, results back.

    With etp, the ranks that share an expert gather its tokens and scatter its results.
    """
    layout, dtype = job.layout, job.recipe.params_dtype
    ep, etp = layout.expert_model_parallel_size, layout.expert_tensor_parallel_size
    rows, width, probability = dispatched_rows(job), _width(job), _probability_dtype(job)
    found = []
    if ep * etp > 1 and not job.recipe.moe_pad_expert_input_to_capacity:
        found.append(_counts(job, ep * etp))
    if ep > 1:
        for name, elements, kind in (
            ("dispatch tokens", rows * width, dtype),
            ("dispatch probabilities", rows, probability),
            ("combine tokens", rows * width, dtype),
        ):
            found += both_ways(name, EXPERT, ALL_TO_ALL, elements, kind, flag=FLAG)
    if etp > 1:
        received = received_rows(job)
        for name, forward, elements, kind in (
            ("expert input", ALL_GATHER, received * width, dtype),
            ("expert probabilities", ALL_GATHER, received, probability),
            ("expert output", REDUCE_SCATTER, received * width, probability),
        ):
            found += both_ways(name, EXPERT_TENSOR, forward, elements, kind)
    return found


def _counts(job: Job, ranks: int) -> Collective:
    return Collective(
        name="tokens per expert",
        group=EXPERT_TENSOR_AND_MODEL,
        collective=ALL_GATHER,
        phase=FORWARD,
        elements=(job.architecture.num_experts or 0) * ranks,
        dtype="int64",
    )


def _all_gather_dispatch(job: Job) -> list[Collective]:
    """Every rank of the etp · ep group gathers all tokens, and scatters all results."""
    layout, experts = job.layout, job.architecture.num_experts or 0
    ranks = layout.expert_model_parallel_size * layout.expert_tensor_parallel_size
    if ranks == 1:
        return []
    tokens, group = shard_tokens(job) * ranks, EXPERT_TENSOR_AND_MODEL
    probability, width = _probability_dtype(job), _width(job)
    routing_map = Collective(
        name="routing map",
        group=group,
        collective=ALL_GATHER,
        phase=FORWARD,
        elements=tokens * experts,
        dtype="bool",
    )
    dtype = job.recipe.params_dtype
    return [
        routing_map,
        *both_ways("dispatch probabilities", group, ALL_GATHER, tokens * experts, probability),
        *both_ways("dispatch tokens", group, ALL_GATHER, tokens * width, dtype),
        *both_ways("combine tokens", group, REDUCE_SCATTER, tokens * width, probability),
    ]


def _balancing_loss(job: Job) -> list[Collective]:
    """Tokens per expert, summed for the load-balancing loss; only where gradients are kept."""
    recipe, layout = job.recipe, job.layout
    kind = recipe.moe_router_load_balancing_type
    groups = {
        "aux_loss": (TENSOR_AND_CONTEXT, 1),
        "seq_aux_loss": (TENSOR_AND_CONTEXT, layout.micro_batch_size),
        "global_aux_loss": (TENSOR_DATA_AND_CONTEXT, 1),
    }
    if recipe.moe_aux_loss_coeff == 0 or kind not in groups:
        return []
    group, sequences = groups[kind]
    return [
        Collective(
            name=f"tokens per expert, for {kind}",
            group=group,
            collective=ALL_REDUCE,
            phase=FORWARD,
            elements=(job.architecture.num_experts or 0) * sequences,
            dtype="int64",
            only_with_gradients=True,
        )
    ]
