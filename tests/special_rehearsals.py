"""Jobs with settings that random ones seldom or never draw, each for what it once got wrong."""

from tests.random_rehearsals import BASE

DENSE: dict = {
    **BASE,
    "num_layers": 4,
    "num_query_groups": 4,
    "swiglu": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "transformer_impl": "local",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "world_size": 4,
    "global_batch_size": 8,
}
EXPERTS = {
    **DENSE,
    "num_experts": 8,
    "moe_ffn_hidden_size": 768,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 2,
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
}
LATENT = {
    "multi_latent_attention": True,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "num_query_groups": 8,
    "transformer_impl": "transformer_engine",
}
PIPELINE = {"pipeline_model_parallel_size": 4, "mtp_num_layers": 1}
# name: (rank, settings)
SPECIAL = {
    "prediction without a layer of the model beside it": (
        3,
        {**DENSE, **PIPELINE, "pipeline_model_parallel_layout": "Et|tt|t|mL"},
    ),
    **{
        f"prediction on a stage of its own, rank {rank}": (
            rank,
            {
                **DENSE,
                **PIPELINE,
                "pipeline_model_parallel_layout": "Et|t|t|t|||m|L",
                "overlap_p2p_communication": rank % 2 == 0,
            },
        )
        for rank in range(4)
    },
    "prediction of a split sequence: the loss mask is rolled in fp32": (
        3,
        {
            **DENSE,
            **LATENT,
            "pipeline_model_parallel_size": 2,
            "context_parallel_size": 2,
            "mtp_num_layers": 1,
        },
    ),
    **{
        f"a stage without layers, rank {rank}: no buffer for scores": (
            rank,
            {
                **DENSE,
                "pipeline_model_parallel_size": 4,
                "pipeline_model_parallel_layout": "E|tt|tt|L",
            },
        )
        for rank in (0, 3)
    },
    "predictions of two further tokens: the last one's logits live on": (
        0,
        {**DENSE, "mtp_num_layers": 2, "untie_embeddings_and_output_weights": True},
    ),
    "gradients in fp16, copied for the update only": (
        1,
        {
            **DENSE,
            "bf16": False,
            "fp16": True,
            "use_distributed_optimizer": True,
            "pipeline_model_parallel_size": 2,
        },
    ),
    "gradients in bf16, without a distributed optimizer": (
        0,
        {**DENSE, "accumulate_allreduce_grads_in_fp32": False},
    ),
    "router in fp32, with Transformer Engine's product": (
        0,
        {**EXPERTS, "moe_router_dtype": "fp32", "transformer_impl": "transformer_engine"},
    ),
    "router in fp32, with torch's product": (0, {**EXPERTS, "moe_router_dtype": "fp32"}),
    "recomputed norms, whose outputs are freed and filled again": (
        0,
        {
            **DENSE,
            "recompute_granularity": "selective",
            "recompute_modules": ["layernorm"],
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "global_batch_size": 20,  # more than are rehearsed
        },
    ),
    "router in fp64": (
        3,
        {**EXPERTS, "moe_router_dtype": "fp64", "transformer_impl": "transformer_engine"},
    ),
    "a learnt offset of the softmax, in flash attention": (
        1,
        {
            **DENSE,
            "softmax_type": "learnable",
            "transformer_impl": "transformer_engine",
            "tensor_model_parallel_size": 2,
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
        },
    ),
    "a stage without experts, which has their optimizer all the same": (
        0,
        {
            **EXPERTS,
            "moe_layer_freq": [0, 0, 1, 1],
            "pipeline_model_parallel_size": 2,
            "use_distributed_optimizer": True,
            "world_size": 8,
        },
    ),
    "experts in a latent space": (1, {**EXPERTS, "moe_latent_size": 256}),
    "pipeline inside data parallelism, without experts": (
        2,
        {
            **DENSE,
            "use_tp_pp_dp_mapping": True,
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "world_size": 8,
        },
    ),
}
