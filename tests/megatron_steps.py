"""Small jobs, each with the rank that is asked: every kind of parallelism that a CPU can run."""

PLAIN = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "micro_batch_size": 2,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "transformer_impl": "local",
    "bf16": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "gradient_accumulation_fusion": False,
    "apply_rope_fusion": False,
    "masked_softmax_fusion": False,
    "bias_gelu_fusion": False,
    "bias_swiglu_fusion": False,
    "bias_dropout_fusion": False,
}
GPT2 = {
    "normalization": "LayerNorm",
    "add_bias_linear": True,
    "swiglu": False,
    "position_embedding_type": "learned_absolute",
}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
EXPERTS = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 64,
    "world_size": 4,
    "global_batch_size": 8,
    "moe_token_dispatcher_type": "alltoall",
}
LATENT = {
    "multi_latent_attention": True,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "kv_channels": 16,
}
SHARDED = {"use_distributed_optimizer": True}
UNTIED = {"untie_embeddings_and_output_weights": True}


def parallel(
    tp: int = 1, pp: int = 1, dp: int = 1, microbatches: int = 2, **others: object
) -> dict:
    """Settings of a layout, with micro-batches of two sequences."""
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "world_size": tp * pp * dp,
        "global_batch_size": 2 * dp * microbatches,
        **others,
    }


# name: (rank, settings beside PLAIN)
STEPS: dict[str, tuple[int, dict]] = {
    "tp sp, sharded": (0, parallel(2, dp=2, sequence_parallel=True) | SHARDED),
    "tp, gpt2": (1, parallel(2, dp=2, microbatches=1) | GPT2),
    "tp sp, gpt2, fused loss": (
        1,
        parallel(2, sequence_parallel=True, qk_layernorm=True, cross_entropy_loss_fusion=True)
        | GPT2,
    ),
    "tp over the query groups, full recompute": (
        1,
        parallel(4, sequence_parallel=True, num_query_groups=2) | FULL,
    ),
    "first stage, tied": (1, parallel(2, 2, 2) | SHARDED),
    "last stage, untied": (7, parallel(2, 2, 2) | SHARDED | UNTIED),
    "interleaved, buckets": (
        0,
        parallel(
            pp=4,
            dp=2,
            microbatches=4,
            num_layers=8,
            virtual_pipeline_model_parallel_size=2,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            ddp_bucket_size=30000,
        )
        | SHARDED,
    ),
    "interleaved, block recompute": (
        7,
        parallel(
            pp=4,
            dp=2,
            microbatches=4,
            num_layers=8,
            virtual_pipeline_model_parallel_size=2,
            overlap_grad_reduce=True,
            ddp_bucket_size=30000,
        )
        | FULL
        | {"recompute_method": "block"},
    ),
    "distributed saved activations": (
        0,
        parallel(2, distribute_saved_activations=True) | FULL | {"recompute_num_layers": 2},
    ),
    "selective recompute": (
        0,
        parallel(
            2,
            sequence_parallel=True,
            recompute_granularity="selective",
            recompute_modules=["core_attn", "mlp"],
        ),
    ),
    "optimizer instances": (
        0,
        parallel(dp=4, num_distributed_optimizer_instances=2, overlap_grad_reduce=True) | SHARDED,
    ),
    "ep, sharded": (0, EXPERTS | SHARDED | {"expert_model_parallel_size": 2}),
    "ep etp, balancing loss": (
        3,
        EXPERTS
        | parallel(2, sequence_parallel=True, dp=2, microbatches=1)
        | {
            "expert_model_parallel_size": 2,
            "expert_tensor_parallel_size": 2,
            "moe_aux_loss_coeff": 0.01,
        },
    ),
    "ep over tp, shared experts, fp32 router": (
        1,
        EXPERTS
        | SHARDED
        | parallel(2, sequence_parallel=True, dp=2, microbatches=1)
        | {
            "expert_model_parallel_size": 4,
            "expert_tensor_parallel_size": 1,
            "moe_shared_expert_intermediate_size": 32,
            "moe_router_dtype": "fp32",
        },
    ),
    "shared experts overlapped": (
        1,
        EXPERTS
        | parallel(2, sequence_parallel=True, dp=2, microbatches=1)
        | {
            "expert_model_parallel_size": 4,
            "expert_tensor_parallel_size": 1,
            "moe_shared_expert_intermediate_size": 32,
            "moe_shared_expert_overlap": True,
        },
    ),
    "allgather dispatcher": (
        0,
        EXPERTS
        | FULL
        | {
            "expert_model_parallel_size": 2,
            "moe_token_dispatcher_type": "allgather",
            "moe_aux_loss_coeff": 0.01,
        },
    ),
    "capacity, padded": (
        0,
        EXPERTS
        | {
            "expert_model_parallel_size": 2,
            "moe_expert_capacity_factor": 1.3,
            "moe_pad_expert_input_to_capacity": True,
            "recompute_granularity": "selective",
            "recompute_modules": ["moe"],
        },
    ),
    "capacity, dropping": (
        0,
        EXPERTS | {"expert_model_parallel_size": 2, "moe_expert_capacity_factor": 0.7},
    ),
    "mtp, last stage": (
        7,
        parallel(2, 2, 2, sequence_parallel=True, mtp_num_layers=2) | SHARDED | UNTIED,
    ),
    "mtp, full recompute": (7, parallel(2, 2, 2, mtp_num_layers=1) | SHARDED | FULL),
    "mla": (
        0,
        parallel(2, dp=2, sequence_parallel=True, q_lora_rank=32, qk_layernorm=True)
        | LATENT
        | {"v_head_dim": 16},
    ),
    "mla, no SP": (0, parallel(2, dp=2, microbatches=1) | LATENT | {"v_head_dim": 24}),
    "mla, selective recompute": (
        0,
        parallel(2, dp=2, sequence_parallel=True, q_lora_rank=32)
        | LATENT
        | {
            "v_head_dim": 16,
            "recompute_granularity": "selective",
            "recompute_modules": ["mla_up_proj", "core_attn"],
        },
    ),
}
