"""Seeded random jobs that megatron-core runs, of every kind that a rehearsal must get right."""

import random

BASE = {
    "num_attention_heads": 8,
    "kv_channels": 128,
    "hidden_size": 1024,
    "seq_length": 2048,
    "vocab_size": 32000,
    "micro_batch_size": 1,
    "bf16": True,
    "max_position_embeddings": 2048,
}
IMPLEMENTATIONS = ("local", "transformer_engine")  # only the latter splits the sequence
STAGES = ("even", "interleaved", "first", "last", "counted")
RECOMPUTE = ("none", "full uniform", "full block", "selective")


def random_settings(seed: int) -> tuple[int, dict]:
    """(rank, settings) of one random job; its kinds cycle, so that none is rare."""
    draw = random.Random(seed)
    tp, pp = draw.choice((1, 2, 4)), draw.choice((1, 2, 4))
    cp, dp = (draw.choice((1, 2, 4)) if seed % 3 == 0 else 1), draw.choice((1, 2))
    settings = {
        **BASE,
        **_shape(draw, seed),
        **_stages(draw, STAGES[seed % len(STAGES)], pp),
        **_recompute(draw, RECOMPUTE[seed % len(RECOMPUTE)]),
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "cp_comm_type": draw.choice(("p2p", "allgather", "a2a")) if tp * cp <= 8 else "p2p",
        "sequence_parallel": tp > 1 and draw.random() < 0.7,
        "world_size": tp * pp * cp * dp,
        "use_distributed_optimizer": draw.random() < 0.6,
        "overlap_grad_reduce": draw.random() < 0.4,
        "hidden_dropout": draw.choice((0.0, 0.1)),
        "attention_dropout": draw.choice((0.0, 0.1)),
        "transformer_impl": "transformer_engine"
        if cp > 1
        else draw.choice(("local", "transformer_engine")),
    }
    if seed % 2:
        settings |= _experts(draw, tp, cp * dp)
    microbatches = (
        pp * draw.choice((1, 2))
        if "virtual_pipeline_model_parallel_size" in settings
        else draw.choice((1, 2, 5))
    )
    settings["global_batch_size"] = microbatches * dp
    if settings.get("context_parallel_size", 1) > 1 and settings["cp_comm_type"] == "a2a":
        settings["num_query_groups"] = 8
    rank = draw.randrange(settings["world_size"])
    return rank, settings


def _shape(draw: random.Random, seed: int) -> dict:
    found = {
        "num_query_groups": draw.choice((2, 4, 8)),
        "swiglu": draw.random() < 0.5,
        "normalization": draw.choice(("LayerNorm", "RMSNorm")),
        "qk_layernorm": draw.random() < 0.3,
        "add_bias_linear": draw.random() < 0.3,
        "position_embedding_type": draw.choice(("rope", "learned_absolute")),
        "untie_embeddings_and_output_weights": draw.random() < 0.5,
    }
    if seed % 7 == 3:
        found |= {
            "multi_latent_attention": True,
            "q_lora_rank": draw.choice((None, 512)),
            "kv_lora_rank": 256,
            "qk_head_dim": 128,
            "qk_pos_emb_head_dim": 64,
            "v_head_dim": draw.choice((128, 64)),
            "num_query_groups": 8,
            "position_embedding_type": "rope",
            "add_bias_linear": False,
        }
    return found


def _stages(draw: random.Random, way: str, pp: int) -> dict:
    if pp == 1 or way == "even":
        return {"num_layers": 4}
    if way == "interleaved":
        return {
            "num_layers": 2 * pp,
            "virtual_pipeline_model_parallel_size": 2,
            "overlap_p2p_communication": pp == 2 or draw.random() < 0.5,
        }
    if way == "first":
        return {"num_layers": 1 + 2 * (pp - 1), "decoder_first_pipeline_num_layers": 1}
    if way == "last":
        return {"num_layers": 3 + 2 * (pp - 1), "decoder_last_pipeline_num_layers": 3}
    return {
        "num_layers": 2 * pp - 2,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }


def _recompute(draw: random.Random, way: str) -> dict:
    if way == "none":
        return {}
    if way == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {
        "recompute_granularity": "full",
        "recompute_method": way.split()[1],
        "recompute_num_layers": 1,
    }


def _experts(draw: random.Random, tp: int, others: int) -> dict:
    ep = draw.choice([size for size in (1, 2, 4) if (tp * others) % size == 0])
    factor = draw.choice((None, None, 1.0, 2.0))
    return {
        "num_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 768,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": draw.choice(
            [size for size in (1, tp) if (tp * others) % (ep * size) == 0]
        ),
        "moe_layer_freq": draw.choice((1, 2)),
        "moe_token_dispatcher_type": draw.choice(("alltoall", "allgather")),
        "moe_shared_expert_intermediate_size": draw.choice((None, 512)),
        "moe_expert_capacity_factor": factor,
        "moe_pad_expert_input_to_capacity": factor is not None and draw.random() < 0.5,
        "moe_aux_loss_coeff": draw.choice((0.0, 0.01)),
        "sequence_parallel": tp > 1,
        "add_bias_linear": False,
    }
