"""A Job in Megatron-Core's own configuration objects: the one place that translates names.

Follows Megatron-LM's `core_transformer_config_from_args` and `get_model` for what its command line
means. A setting that appears nowhere here or in `engine.model`, `engine.groups` and `run.train` has
no effect on a run; `run.preflight` refuses those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.enums import AttnBackend

from steptally.engine.stages import virtual_stages
from steptally.job import Architecture, Job

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}


def transformer_config(job: Job) -> TransformerConfig:
    """The model's and the schedule's configuration. Needs no process group."""
    latent = job.architecture.multi_latent_attention
    return (MLATransformerConfig if latent else TransformerConfig)(
        **_shape(job.architecture),
        **(_latent_attention(job.architecture) if latent else {}),
        **_experts(job),
        **_split(job),
        **_recomputation(job),
        **_precision_and_fusions(job),
    )


def ddp_config(job: Job) -> DistributedDataParallelConfig:
    """How gradients are bucketed and reduced over the data-parallel ranks."""
    recipe = job.recipe
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=recipe.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=recipe.overlap_grad_reduce,
        overlap_param_gather=recipe.overlap_param_gather,
        use_distributed_optimizer=recipe.use_distributed_optimizer,
        num_distributed_optimizer_instances=job.layout.num_distributed_optimizer_instances,
        bucket_size=recipe.ddp_bucket_size,
        average_in_collective=recipe.ddp_average_in_collective,
        check_for_nan_in_grad=not recipe.fp16,  # fp16's loss scaler looks for them itself
    )


def optimizer_config(job: Job) -> OptimizerConfig:
    """The optimizer's settings; the learning rate is constant."""
    recipe = job.recipe
    return OptimizerConfig(
        optimizer=recipe.optimizer,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        clip_grad=recipe.clip_grad,
        adam_beta1=recipe.adam_beta1,
        adam_beta2=recipe.adam_beta2,
        adam_eps=recipe.adam_eps,
        bf16=recipe.bf16,
        fp16=recipe.fp16,
        params_dtype=DTYPES[recipe.params_dtype],
        use_distributed_optimizer=recipe.use_distributed_optimizer,
        overlap_param_gather=recipe.overlap_param_gather,
        use_precision_aware_optimizer=recipe.use_precision_aware_optimizer,
        main_grads_dtype=DTYPES[recipe.main_grads_dtype],
        main_params_dtype=DTYPES[recipe.main_params_dtype],
        exp_avg_dtype=DTYPES[recipe.exp_avg_dtype],
        exp_avg_sq_dtype=DTYPES[recipe.exp_avg_sq_dtype],
    )


def _shape(architecture: Architecture) -> dict[str, Any]:
    return {
        "num_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "num_attention_heads": architecture.num_attention_heads,
        "num_query_groups": architecture.num_query_groups,
        "kv_channels": architecture.kv_channels,
        "ffn_hidden_size": architecture.ffn_hidden_size,
        "activation_func": _activation(architecture),
        "gated_linear_unit": architecture.gated_linear_unit,
        "normalization": architecture.normalization,
        "layernorm_epsilon": architecture.norm_epsilon,
        "qk_layernorm": architecture.qk_layernorm,
        "attention_output_gate": architecture.attention_output_gate,
        "softmax_type": architecture.softmax_type,
        "add_bias_linear": architecture.add_bias_linear,
        # Megatron-LM keeps them in step: all biases include that of QKV.
        "add_qkv_bias": architecture.add_qkv_bias or architecture.add_bias_linear,
        "mtp_num_layers": architecture.mtp_num_layers,
    }


def _latent_attention(architecture: Architecture) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "q_lora_rank": architecture.q_lora_rank,
        "kv_lora_rank": architecture.kv_lora_rank,
        "qk_head_dim": architecture.qk_head_dim,
        "qk_pos_emb_head_dim": architecture.qk_pos_emb_head_dim,
        "v_head_dim": architecture.v_head_dim,
        "rope_type": "rope",
    }


def _activation(architecture: Architecture) -> Callable[..., torch.Tensor]:
    if architecture.swiglu:
        return F.silu
    if architecture.quick_geglu:
        return quick_gelu
    return squared_relu if architecture.squared_relu else F.gelu  # geglu: GELU with a gate


def _experts(job: Job) -> dict[str, Any]:
    architecture, layout, recipe = job.architecture, job.layout, job.recipe
    if architecture.num_experts is None:
        return {}
    frequency = architecture.moe_layer_freq
    return {
        "num_moe_experts": architecture.num_experts,
        "moe_layer_freq": list(frequency) if isinstance(frequency, tuple) else frequency,
        "moe_router_topk": architecture.moe_router_topk,
        "moe_ffn_hidden_size": architecture.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        "moe_shared_expert_gate": architecture.moe_shared_expert_gate,
        "moe_latent_size": architecture.moe_latent_size,
        "expert_model_parallel_size": layout.expert_model_parallel_size,
        "expert_tensor_parallel_size": layout.expert_tensor_parallel_size,
        "moe_token_dispatcher_type": recipe.moe_token_dispatcher_type,
        "moe_grouped_gemm": recipe.moe_grouped_gemm,
        "moe_permute_fusion": recipe.moe_permute_fusion,
        "moe_router_dtype": recipe.moe_router_dtype,
        "moe_router_load_balancing_type": recipe.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": recipe.moe_aux_loss_coeff,
        "moe_expert_capacity_factor": recipe.moe_expert_capacity_factor,
        "moe_pad_expert_input_to_capacity": recipe.moe_pad_expert_input_to_capacity,
        "moe_shared_expert_overlap": recipe.moe_shared_expert_overlap,
        "overlap_moe_expert_parallel_comm": recipe.overlap_moe_expert_parallel_comm,
        "delay_wgrad_compute": recipe.delay_wgrad_compute,
    }


def _split(job: Job) -> dict[str, Any]:
    layout = job.layout
    chunks = virtual_stages(layout)
    # Only the interleaved schedule overlaps pipeline communication (Megatron-LM's own rule).
    overlap_p2p = chunks is not None and job.recipe.overlap_p2p_communication
    return {
        "tensor_model_parallel_size": layout.tensor_model_parallel_size,
        "sequence_parallel": layout.sequence_parallel,
        "context_parallel_size": layout.context_parallel_size,
        "cp_comm_type": layout.cp_comm_type,
        "pipeline_model_parallel_size": layout.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": chunks,
        "pipeline_model_parallel_layout": layout.pipeline_model_parallel_layout,
        "num_layers_in_first_pipeline_stage": layout.decoder_first_pipeline_num_layers,
        "num_layers_in_last_pipeline_stage": layout.decoder_last_pipeline_num_layers,
        "account_for_embedding_in_pipeline_split": layout.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": layout.account_for_loss_in_pipeline_split,
        "microbatch_group_size_per_vp_stage": layout.microbatch_group_size_per_vp_stage,
        "overlap_p2p_comm": overlap_p2p,
        "batch_p2p_comm": not overlap_p2p,
        "deallocate_pipeline_outputs": True,
        "pipeline_dtype": DTYPES[job.recipe.params_dtype],
    }


def _recomputation(job: Job) -> dict[str, Any]:
    layout = job.layout
    return {
        "recompute_granularity": layout.recompute_granularity,
        "recompute_method": layout.recompute_method,
        "recompute_num_layers": layout.recompute_num_layers,
        "recompute_modules": list(layout.recompute_modules),
        "distribute_saved_activations": layout.distribute_saved_activations,
    }


def _precision_and_fusions(job: Job) -> dict[str, Any]:
    recipe = job.recipe
    # Megatron-LM: one flag for gated SiLU, the other for every other activation.
    bias_fusion = recipe.bias_swiglu_fusion if job.architecture.swiglu else recipe.bias_gelu_fusion
    return {
        "bf16": recipe.bf16,
        "fp16": recipe.fp16,
        "params_dtype": DTYPES[recipe.params_dtype],
        "fp8": recipe.fp8,
        "fp8_recipe": recipe.fp8_recipe,
        "fp8_param": recipe.fp8_param_gather,
        "fp4": recipe.fp4,
        "transformer_impl": recipe.transformer_impl,
        "attention_backend": AttnBackend[recipe.attention_backend],
        "attention_softmax_in_fp32": recipe.attention_softmax_in_fp32,
        "attention_dropout": recipe.attention_dropout,
        "hidden_dropout": recipe.hidden_dropout,
        "init_method_std": recipe.init_method_std,
        "masked_softmax_fusion": recipe.masked_softmax_fusion,
        "bias_activation_fusion": bias_fusion,
        "bias_dropout_fusion": recipe.bias_dropout_fusion,
        "apply_rope_fusion": recipe.apply_rope_fusion,
        "cross_entropy_loss_fusion": recipe.cross_entropy_loss_fusion,
        "cross_entropy_fusion_impl": recipe.cross_entropy_fusion_impl,
        "gradient_accumulation_fusion": recipe.gradient_accumulation_fusion,
        "tp_comm_overlap": recipe.tp_comm_overlap,
        "cuda_graph_impl": recipe.cuda_graph_impl,
    }
