"""Combinations of mixture-of-experts settings that a run refuses.

Sources: Megatron-LM's `validate_args` and the assertions of megatron-core 0.16.1 (its transformer
configuration, router, dispatchers and experts).
"""

from __future__ import annotations

from steptally.engine.stages import virtual_stages
from steptally.errors import InputError
from steptally.job import Job


def experts_train(job: Job) -> None:
    """Expert parallelism in half precision."""
    if job.recipe.fp16 and job.layout.expert_model_parallel_size > 1:
        raise InputError("expert_model_parallel_size above 1 does not train in fp16: use bf16.")


def router_has_a_gradient(job: Job) -> None:
    """One expert a token needs another order of softmax and choice; Sinkhorn needs no aux loss."""
    architecture, recipe = job.architecture, job.recipe
    sinkhorn = recipe.moe_router_load_balancing_type == "sinkhorn"
    if architecture.moe_router_topk == 1 and not sinkhorn:
        raise InputError(
            "moe_router_topk is 1: the softmax over one expert has no gradient, so Megatron wants "
            "moe_router_pre_softmax, which a job cannot state yet. Use moe_router_topk 2, or "
            "moe_router_load_balancing_type sinkhorn."
        )
    if sinkhorn and recipe.moe_aux_loss_coeff:
        raise InputError(
            "moe_router_load_balancing_type sinkhorn balances by itself: remove "
            f"moe_aux_loss_coeff {recipe.moe_aux_loss_coeff}."
        )


def expert_communication_overlaps(job: Job) -> None:
    """What hiding the experts' all-to-all behind another micro-batch needs."""
    layout, recipe = job.layout, job.recipe
    if not recipe.overlap_moe_expert_parallel_comm:
        return
    interleaved = virtual_stages(layout) is not None
    needs = {
        "expert_model_parallel_size above 1": layout.expert_model_parallel_size > 1,
        "moe_token_dispatcher_type alltoall": recipe.moe_token_dispatcher_type == "alltoall",
        "bf16 or fp16": recipe.bf16 or recipe.fp16,
        "no full recomputation": layout.recompute_granularity != "full",
        "no moe_shared_expert_overlap": not recipe.moe_shared_expert_overlap,
        "virtual_pipeline_model_parallel_size with pipeline parallelism": (
            layout.pipeline_model_parallel_size == 1 or interleaved
        ),
    }
    missing = [need for need, met in needs.items() if not met]
    if missing:
        raise InputError(
            f"overlap_moe_expert_parallel_comm needs {', and '.join(missing)}: change that, or "
            f"remove it."
        )


def rank_order_fits_experts(job: Job) -> None:
    """With pipeline ranks before data ranks, experts cannot have another data-parallel size."""
    layout = job.layout
    if not layout.use_tp_pp_dp_mapping or layout.pipeline_model_parallel_size == 1:
        return
    expert_ranks = (
        layout.expert_tensor_parallel_size
        * layout.expert_model_parallel_size
        * layout.pipeline_model_parallel_size
    )
    expert_replicas = layout.world_size // expert_ranks
    if expert_replicas != layout.data_parallel_size:
        raise InputError(
            f"use_tp_pp_dp_mapping needs as many replicas of the experts ({expert_replicas}) as "
            f"of the other layers ({layout.data_parallel_size}): remove it, or use "
            f"expert_tensor_parallel_size · expert_model_parallel_size = tp · cp."
        )


def expert_biases_have_kernels(job: Job) -> None:
    """Biases of experts are not split, not shared, and not fused."""
    architecture, recipe = job.architecture, job.recipe
    if not architecture.add_bias_linear:
        return
    if job.layout.expert_tensor_parallel_size > 1:
        raise InputError(
            f"add_bias_linear in experts needs expert_tensor_parallel_size 1, which is "
            f"{job.layout.expert_tensor_parallel_size}: set it to 1, or add_bias_linear to false."
        )
    if architecture.moe_shared_expert_intermediate_size:
        raise InputError("shared experts have no biases: --set add_bias_linear=false.")
    fusion = "bias_swiglu_fusion" if architecture.swiglu else "bias_gelu_fusion"
    if getattr(recipe, fusion) and not architecture.quick_geglu:
        raise InputError(
            f"{fusion} has no kernel for experts with biases: --set {fusion}=false, or "
            f"add_bias_linear=false."
        )


def expert_capacity_is_stated(job: Job) -> None:
    """Padding to the capacity needs a capacity, which Sinkhorn routing does not have."""
    recipe = job.recipe
    if recipe.moe_pad_expert_input_to_capacity and recipe.moe_expert_capacity_factor is None:
        raise InputError(
            "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor: set it, as 1.0."
        )
    balanced = recipe.moe_router_load_balancing_type
    if recipe.moe_expert_capacity_factor is not None and balanced == "sinkhorn":
        raise InputError(
            "moe_expert_capacity_factor does not work with moe_router_load_balancing_type "
            "sinkhorn: use aux_loss."
        )


def gloo_gathers_equal_parts(job: Job) -> None:
    """NCCL's all-gather and reduce-scatter take parts of unequal sizes, gloo's do not.

    The all-to-all dispatcher gathers what each rank of an expert's tensor-parallel group received,
    which is unequal but for padding, or where every rank has all experts.
    """
    layout, recipe = job.layout, job.recipe
    if (
        recipe.moe_token_dispatcher_type == "alltoall"
        and layout.expert_tensor_parallel_size > 1
        and layout.expert_model_parallel_size > 1
        and not recipe.moe_pad_expert_input_to_capacity
    ):
        raise InputError(
            f"moe_token_dispatcher_type alltoall with expert_tensor_parallel_size "
            f"{layout.expert_tensor_parallel_size} gathers unequal numbers of tokens, which gloo "
            f"cannot: set expert_tensor_parallel_size=1, moe_token_dispatcher_type=allgather, or "
            f"moe_pad_expert_input_to_capacity with moe_expert_capacity_factor."
        )


def shared_experts_overlap(job: Job) -> None:
    """Shared experts hide behind the all-to-all dispatcher only."""
    if not job.recipe.moe_shared_expert_overlap:
        return
    if job.architecture.moe_shared_expert_intermediate_size is None:
        raise InputError(
            "moe_shared_expert_overlap needs moe_shared_expert_intermediate_size: there are no "
            "shared experts to overlap."
        )
    if job.recipe.moe_token_dispatcher_type != "alltoall":
        raise InputError(
            "moe_shared_expert_overlap needs moe_token_dispatcher_type alltoall, which is "
            f"{job.recipe.moe_token_dispatcher_type}: set it."
        )


EXPERT_RULES = (
    experts_train,
    router_has_a_gradient,
    expert_biases_have_kernels,
    expert_capacity_is_stated,
    shared_experts_overlap,
    expert_communication_overlaps,
    rank_order_fits_experts,
)
