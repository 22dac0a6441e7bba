"""Settings that a run would ignore, and how each is refused.

A run that ignores a flag measures another job than the one it names. So every setting of a job is
either read by the engine (`engine.config`, `engine.model`, `engine.groups`, `run.train`), or
harmless for a stated reason, or refused here when it is on; a test walks over all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from steptally.engine.adapt import uses_transformer_engine
from steptally.engine.availability import EngineParts
from steptally.engine.stages import virtual_stages
from steptally.errors import InputError
from steptally.job import Architecture, Cluster, Job, Layout, Recipe

# Settings that say nothing about what a rank does.
HARMLESS: Mapping[str, str] = {
    "device": "only names the accelerator in the accounts",
    "devices_per_node": "only places ranks on nodes in the accounts",
    "nodes": "only places ranks on nodes in the accounts",
    "link_domain_size": "only places ranks on nodes in the accounts",
    "intra_node_bandwidth_bytes_per_s": "only prices communication in the accounts",
    "inter_node_bandwidth_bytes_per_s": "only prices communication in the accounts",
    "train_iters": "a run is as long as its --steps",
    "train_samples": "a run is as long as its --steps",
}

# Settings that no run of this version can honour: what is missing.
UNSUPPORTED: Mapping[str, str] = {
    "multi_latent_attention": "multi-latent attention is not built by the engine",
    "mtp_num_layers": "multi-token prediction is not built by the engine",
    "hybrid_override_pattern": "Mamba layers are not built by the engine",
    "post_layer_norms": "layers of megatron-core 0.16.1 have no norm after attention or MLP",
    "rampup_batch_size": "every step of a run has the whole global batch",
    "window_size": "the engine's attention sees the whole prefix",
    "attention_chunk_size": "the engine's attention sees the whole prefix",
    "tp_comm_overlap": "the worker does not set up Transformer Engine's user buffers",
    "cuda_graph_impl": "the worker captures no CUDA graphs",
    "delay_wgrad_compute": "it is built into Transformer Engine's layers only",
    "optimizer_cpu_offload": "the worker does not set up Megatron's hybrid optimizer",
}

# Settings that Transformer Engine implements; without it they fail or silently do nothing.
TRANSFORMER_ENGINE_ONLY: Mapping[str, str] = {
    "fp8": "does nothing",
    "fp8_param_gather": "does nothing",
    "fp4": "does nothing",
    "apply_rope_fusion": "fails",
    "moe_grouped_gemm": "fails",
    "moe_permute_fusion": "fails",
    "moe_latent_size": "fails",
    "use_precision_aware_optimizer": "fails",
}

APEX_ONLY = ("masked_softmax_fusion", "gradient_accumulation_fusion")

# Choices of which the engine can honour only some: setting → choices → why not.
UNSUPPORTED_CHOICES: Mapping[str, Mapping[str, str]] = {
    "position_embedding_type": {
        "mrope": "its sections are not part of a job",
        "yarn": "its scaling is not part of a job",
        "relative": "GPT layers take no attention bias",
    },
    "normalization": {"L2Norm": "torch has no such layer"},
    "moe_token_dispatcher_type": {"flex": "DeepEP and HybridEP are not set up by the worker"},
    "softmax_type": {"learnable": "its offsets have no initial value that suits every layout"},
    "optimizer": dict.fromkeys(
        ("muon", "dist_muon", "adaptive_muon", "lion", "soap"),
        "its package is not part of the engine",
    ),
}
LOCAL_UNSUPPORTED_CHOICES: Mapping[str, Mapping[str, str]] = {
    "attention_backend": {
        "flash": "Megatron-Core's own attention is unfused",
        "fused": "Megatron-Core's own attention is unfused",
    },
    "cross_entropy_fusion_impl": {
        "te": "the kernel is Transformer Engine's",
        "linear": "megatron-core 0.16.1 has no such kernel",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """Settings that have an effect only where `applies`; `needs` says so in words."""

    names: tuple[str, ...]
    applies: Callable[[Job], bool]
    needs: str


CONDITIONAL = (
    Conditional(
        names=(
            "moe_layer_freq",
            "moe_router_topk",
            "moe_ffn_hidden_size",
            "moe_shared_expert_intermediate_size",
            "moe_shared_expert_gate",
            "moe_latent_size",
            "moe_router_dtype",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "moe_token_dispatcher_type",
            "moe_grouped_gemm",
            "moe_permute_fusion",
            "moe_router_load_balancing_type",
            "moe_aux_loss_coeff",
            "moe_expert_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "moe_shared_expert_overlap",
            "overlap_moe_expert_parallel_comm",
        ),
        applies=lambda job: job.architecture.num_experts is not None,
        needs="num_experts",
    ),
    Conditional(
        names=("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
        applies=lambda job: job.architecture.multi_latent_attention,
        needs="multi_latent_attention",
    ),
    Conditional(
        names=("mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads"),
        applies=lambda job: job.architecture.hybrid_override_pattern is not None,
        needs="hybrid_override_pattern",
    ),
    Conditional(
        names=("window_attn_skip_freq",),
        applies=lambda job: job.architecture.window_size is not None,
        needs="window_size",
    ),
    Conditional(
        names=("rotary_base", "rotary_percent"),
        applies=lambda job: job.architecture.position_embedding_type == "rope",
        needs="position_embedding_type rope",
    ),
    Conditional(
        names=("cp_comm_type",),
        applies=lambda job: job.layout.context_parallel_size > 1,
        needs="context_parallel_size above 1",
    ),
    Conditional(
        names=("microbatch_group_size_per_vp_stage",),
        applies=lambda job: virtual_stages(job.layout) is not None,
        needs="virtual_pipeline_model_parallel_size",
    ),
    Conditional(
        names=("recompute_num_layers", "distribute_saved_activations"),
        applies=lambda job: job.layout.recompute_granularity == "full",
        needs="recompute_granularity full",
    ),
    Conditional(
        names=("recompute_modules",),
        applies=lambda job: job.layout.recompute_granularity == "selective",
        needs="recompute_granularity selective",
    ),
    Conditional(
        names=("ddp_bucket_size",),
        applies=lambda job: job.recipe.overlap_grad_reduce,
        needs="overlap_grad_reduce (without it there is one bucket)",
    ),
    Conditional(
        names=("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
        applies=lambda job: job.recipe.use_precision_aware_optimizer,
        needs="use_precision_aware_optimizer",
    ),
    Conditional(
        names=("optimizer_offload_fraction",),
        applies=lambda job: job.recipe.optimizer_cpu_offload,
        needs="optimizer_cpu_offload",
    ),
    Conditional(
        names=("grad_reduce_in_bf16",),
        applies=lambda job: job.recipe.bf16,
        needs="bf16",
    ),
    Conditional(
        names=("moe_shared_expert_gate",),
        applies=lambda job: job.architecture.moe_shared_expert_intermediate_size is not None,
        needs="moe_shared_expert_intermediate_size",
    ),
    Conditional(
        names=("fp8_recipe",),
        applies=lambda job: job.recipe.fp8 is not None,
        needs="fp8",
    ),
    Conditional(
        names=("cross_entropy_fusion_impl",),
        applies=lambda job: job.recipe.cross_entropy_loss_fusion,
        needs="cross_entropy_loss_fusion",
    ),
)


def check_nothing_is_ignored(job: Job, parts: EngineParts) -> None:
    """Raise `InputError` for the first setting that is on and would have no effect."""
    _refuse(job, UNSUPPORTED, "cannot be honoured")
    _refuse_choices(job, UNSUPPORTED_CHOICES)
    if not uses_transformer_engine(job, parts):
        _refuse(
            job,
            {
                name: f"without Transformer Engine it {outcome}"
                for name, outcome in TRANSFORMER_ENGINE_ONLY.items()
            },
            "needs Transformer Engine",
        )
        _refuse_choices(job, LOCAL_UNSUPPORTED_CHOICES)
    if parts.apex is None:
        _refuse(job, dict.fromkeys(APEX_ONLY, "Apex carries the kernel"), "needs Apex")
    for conditional in CONDITIONAL:
        if not conditional.applies(job):
            _refuse_conditional(job, conditional)


def is_on(job: Job, name: str) -> bool:
    """Whether a setting asks for something: stated, and neither off nor Megatron's default.

    A fusion that is on by default counts as asked for when it is stated; `engine.adapt` has
    already switched off those that were merely assumed.
    """
    value = job.settings()[name]
    if value is None or value is False or name in job.assumed:
        return False
    return value is True or value != DEFAULTS[name]


def _defaults() -> dict[str, Any]:
    parts = (Architecture, Layout, Recipe, Cluster)
    return {field.name: field.default for part in parts for field in dataclasses.fields(part)}


DEFAULTS = _defaults()


def _refuse(job: Job, reasons: Mapping[str, str], what: str) -> None:
    for name, reason in reasons.items():
        if is_on(job, name):
            raise InputError(
                f"{_stated(job, name)} {what} in a run: {reason}. {_how_to_drop(name)}."
            )


def _refuse_choices(job: Job, choices: Mapping[str, Mapping[str, str]]) -> None:
    for name, refused in choices.items():
        value = job.settings()[name]
        if value in refused and name not in job.assumed:
            raise InputError(
                f"{_stated(job, name)} cannot be honoured in a run: {refused[str(value)]}. "
                f"{_how_to_drop(name)}."
            )


def _refuse_conditional(job: Job, conditional: Conditional) -> None:
    for name in conditional.names:
        if is_on(job, name):
            raise InputError(
                f"{_stated(job, name)} has no effect without {conditional.needs}: set that as "
                f"well, or remove {name}."
            )


def _stated(job: Job, name: str) -> str:
    return f"{job.source} states {name} {job.settings()[name]}, which"


def _how_to_drop(name: str) -> str:
    default = DEFAULTS[name]
    if default is True or default is False:
        return f"Remove it, or --set {name}=false"
    return f"Remove it, or --set {name}={'none' if default is None else default}"
