"""Random jobs that Megatron would run, for properties that must hold of every job."""

from hypothesis import assume
from hypothesis import strategies as st

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.layers import layer_kinds
from steptally.predict.stages import model_chunks

BASE = {"hidden_size": 64, "num_attention_heads": 8, "seq_length": 64, "vocab_size": 250}


@st.composite
def jobs(draw):
    """A job of any kind that steptally knows, small, split in any way that Megatron allows."""
    tp, cp, pp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2), (1, 2, 4)))
    dp, microbatches = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 4)))
    micro_batch_size = draw(st.sampled_from((1, 2)))
    settings = {
        **BASE,
        **draw(shapes()),
        **draw(stages(pp)),
        **draw(mixture_of_experts(tp * cp * dp)),
        **draw(recomputation()),
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "pipeline_model_parallel_size": pp,
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "cp_comm_type": draw(st.sampled_from(("p2p", "allgather", "a2a"))),
        "world_size": tp * cp * pp * dp,
        "micro_batch_size": micro_batch_size,
        "global_batch_size": micro_batch_size * dp * microbatches,
        **draw(recipes()),
    }
    if "num_experts" in settings:  # Megatron's own rule
        settings["sequence_parallel"] = tp > 1
    try:
        job = job_from_settings(settings)
        model_chunks(job)
        layer_kinds(job)
    except InputError:
        assume(False)
    return job


@st.composite
def shapes(draw):
    """Attention of every kind, MLPs, MTP, tied or untied embeddings."""
    kind = draw(st.sampled_from(("grouped", "window", "chunk", "latent", "hybrid")))
    found = {
        "num_query_groups": draw(st.sampled_from((1, 2, 8))),
        "swiglu": draw(st.booleans()),
        "qk_layernorm": draw(st.booleans()),
        "add_bias_linear": draw(st.booleans()),
        "normalization": draw(st.sampled_from(("LayerNorm", "RMSNorm"))),
        "position_embedding_type": draw(st.sampled_from(("rope", "learned_absolute"))),
        "max_position_embeddings": 64,
        "untie_embeddings_and_output_weights": draw(st.booleans()),
        "mtp_num_layers": draw(st.sampled_from((None, 1, 2))),
        "kv_channels": draw(st.sampled_from((8, 16))),
    }
    if kind == "window":
        found |= {"window_size": 10, "window_attn_skip_freq": 2}
    if kind == "chunk":
        found["attention_chunk_size"] = 24
    if kind == "latent":
        found |= {
            "multi_latent_attention": True,
            "q_lora_rank": draw(st.sampled_from((None, 32))),
            "kv_lora_rank": 16,
            "qk_head_dim": 16,
            "qk_pos_emb_head_dim": 8,
            "v_head_dim": draw(st.sampled_from((16, 24))),
            "num_query_groups": 8,
        }
    if kind == "hybrid":
        found |= {
            "hybrid_override_pattern": "M-M*",
            "mamba_head_dim": 16,
            "mamba_num_groups": 4,
            "mamba_state_dim": 16,
            "mtp_num_layers": None,
        }
    return found


@st.composite
def stages(draw, pp):
    """Even, interleaved and uneven splits."""
    way = draw(st.sampled_from(("even", "interleaved", "first", "counted")))
    if way == "interleaved" and pp > 1:
        return {"num_layers": 2 * pp, "virtual_pipeline_model_parallel_size": 2}
    if way == "first" and pp > 1:
        return {"num_layers": 3 + 2 * (pp - 1), "decoder_first_pipeline_num_layers": 3}
    if way == "counted" and pp > 1:
        return {"num_layers": 2 * pp - 1, "account_for_embedding_in_pipeline_split": True}
    return {"num_layers": 4}


@st.composite
def mixture_of_experts(draw, ranks):
    """Experts or none; ep and etp that divide `ranks`."""
    if draw(st.booleans()):
        return {}
    parallel = [(e, t) for e in (1, 2, 4) for t in (1, 2) if ranks % (e * t) == 0]
    ep, etp = draw(st.sampled_from(parallel))
    factor = draw(st.sampled_from((None, 0.7, 1.3)))
    return {
        "num_experts": 8,
        "moe_router_topk": draw(st.sampled_from((1, 2, 3))),
        "moe_ffn_hidden_size": 48,
        "moe_layer_freq": draw(st.sampled_from((1, 2))),
        "moe_shared_expert_intermediate_size": draw(st.sampled_from((None, 32))),
        "moe_shared_expert_gate": draw(st.booleans()),
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
        "moe_token_dispatcher_type": draw(st.sampled_from(("alltoall", "allgather"))),
        "moe_grouped_gemm": draw(st.booleans()),
        "moe_expert_capacity_factor": factor,
        "moe_pad_expert_input_to_capacity": factor is not None and draw(st.booleans()),
    }


@st.composite
def recomputation(draw):
    """None, full in both methods, or any set of selective modules."""
    way = draw(st.sampled_from(("none", "uniform", "block", "selective")))
    if way == "none":
        return {}
    if way != "selective":
        return {
            "recompute_granularity": "full",
            "recompute_method": way,
            "recompute_num_layers": 1,
        }
    modules = ("core_attn", "mlp", "moe", "shared_experts", "mla_up_proj", "layernorm")
    chosen = draw(st.lists(st.sampled_from(modules), min_size=1, unique=True))
    return {"recompute_granularity": "selective", "recompute_modules": chosen}


@st.composite
def recipes(draw):
    """Precision, implementation of layers, optimizer."""
    return {
        "bf16": draw(st.booleans()),
        "transformer_impl": draw(st.sampled_from(("local", "transformer_engine"))),
        "attention_backend": draw(st.sampled_from(("auto", "unfused", "flash"))),
        "fp8": draw(st.sampled_from((None, "hybrid"))),
        "use_distributed_optimizer": draw(st.booleans()),
        "overlap_grad_reduce": draw(st.booleans()),
    }
