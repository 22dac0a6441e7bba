"""What a Hugging Face `model_type` fixes that its `config.json` does not say.

Source: the configuration and modelling code of transformers 5.24, family by family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The shape behind a `model_type`.

    `settings` are fixed by the code. `gated`: the MLP has a gate. `tied`: embeddings are shared
    where the file does not say. `window`: which layers see `sliding_window` keys: `all`, every but
    each n-th (an int), `flagged` (only with use_sliding_window), or none. `moe_width` names the
    key that holds an expert's width. `head_dim` is the default where it is not hidden / heads.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    gated: bool = True
    tied: bool = False
    window: str | int = ""
    moe_width: str = "moe_intermediate_size"
    head_dim: int | None = None


RMS_ROPE: Mapping[str, object] = {
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
}
LAYER_NORM: Mapping[str, object] = {"normalization": "LayerNorm", "add_bias_linear": True}
MLA: Mapping[str, object] = {**RMS_ROPE, "multi_latent_attention": True, "qk_layernorm": True}
GEMMA: Mapping[str, object] = {**RMS_ROPE, "post_layer_norms": True}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(settings=RMS_ROPE),
    "mistral": Family(settings=RMS_ROPE, window="all"),
    "mixtral": Family(settings=RMS_ROPE, window="all", moe_width="intermediate_size"),
    "qwen2": Family(settings={**RMS_ROPE, "add_qkv_bias": True}, window="flagged"),
    "qwen2_moe": Family(
        settings={**RMS_ROPE, "add_qkv_bias": True, "moe_shared_expert_gate": True},
        window="flagged",
    ),
    "qwen3": Family(settings={**RMS_ROPE, "qk_layernorm": True}, window="flagged", head_dim=128),
    "qwen3_moe": Family(
        settings={**RMS_ROPE, "qk_layernorm": True}, window="flagged", head_dim=128
    ),
    "deepseek_v2": Family(settings=MLA),
    "deepseek_v3": Family(settings=MLA),
    "kimi_k2": Family(settings=MLA),
    "gpt_oss": Family(
        settings={
            **RMS_ROPE,
            "add_bias_linear": True,
            "quick_geglu": True,
            "softmax_type": "learnable",
            "position_embedding_type": "yarn",
        },
        window=2,
        moe_width="intermediate_size",
        head_dim=64,
    ),
    "gemma": Family(settings=RMS_ROPE, tied=True, head_dim=256),
    "gemma2": Family(settings=GEMMA, tied=True, window=2, head_dim=256),
    "gemma3_text": Family(
        settings={**GEMMA, "qk_layernorm": True}, tied=True, window=6, head_dim=256
    ),
    "glm4_moe": Family(settings=RMS_ROPE),
    "phi3": Family(settings=RMS_ROPE, window="all"),
    "granite": Family(settings=RMS_ROPE),
    "seed_oss": Family(settings={**RMS_ROPE, "add_qkv_bias": True}, head_dim=128),
    "smollm3": Family(settings=RMS_ROPE, tied=True),
    "nemotron": Family(
        settings={
            **RMS_ROPE,
            "normalization": "LayerNorm",
            "squared_relu": True,
            "rotary_percent": 0.5,
        },
        gated=False,
    ),
    "nemotron_h": Family(
        settings={**RMS_ROPE, "position_embedding_type": "none", "squared_relu": True}, gated=False
    ),
    "gpt2": Family(
        settings={**LAYER_NORM, "position_embedding_type": "learned_absolute"},
        gated=False,
        tied=True,
    ),
    "gpt_neox": Family(
        settings={**LAYER_NORM, "position_embedding_type": "rope", "rotary_percent": 0.25},
        gated=False,
    ),
    "starcoder2": Family(
        settings={**LAYER_NORM, "position_embedding_type": "rope"},
        gated=False,
        tied=True,
        window="all",
    ),
    "bloom": Family(
        settings={**LAYER_NORM, "position_embedding_type": "none"}, gated=False, tied=True
    ),
}

# Names that are another family's shape.
SAME_AS: Mapping[str, str] = {"gemma3": "gemma3_text", "ministral": "mistral"}

# What a key of config.json is called in Megatron-LM; the first key that is there counts.
NAMES: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "ffn_hidden_size": ("intermediate_size", "n_inner"),
    "num_query_groups": ("num_key_value_heads",),
    "kv_channels": ("head_dim", "attention_head_dim"),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length"),
    "rotary_base": ("rope_theta", "rotary_emb_base"),
    "rotary_percent": ("partial_rotary_factor", "rotary_pct"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "init_method_std": ("initializer_range",),
    "attention_dropout": ("attention_dropout", "attn_pdrop"),
    "hidden_dropout": ("hidden_dropout", "resid_pdrop", "residual_dropout"),
    "num_experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "moe_router_topk": ("num_experts_per_tok", "num_experts_per_token"),
    "moe_aux_loss_coeff": ("router_aux_loss_coef", "aux_loss_alpha"),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_head_dim": ("qk_nope_head_dim",),
    "qk_pos_emb_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "mtp_num_layers": ("num_nextn_predict_layers",),
    "hybrid_layer_pattern": ("hybrid_override_pattern",),
    "mamba_state_dim": ("ssm_state_size",),
    "mamba_head_dim": ("mamba_head_dim",),
    "mamba_num_groups": ("n_groups",),
    "mamba_num_heads": ("mamba_num_heads",),
}  # fmt: skip

# Keys that no account depends on, or that the reader uses by name.
HARMLESS = frozenset(
    """
    _name_or_path architectures attn_implementation auto_map bos_token_id eos_token_id
    pad_token_id unk_token_id sep_token_id decoder_start_token_id image_token_index torch_dtype
    dtype transformers_version use_cache is_decoder add_cross_attention rope_scaling
    rope_parameters rope_interleave rope_ratio rope_local_base_freq original_rope
    original_max_position_embeddings attn_logit_softcapping final_logit_softcapping
    cache_implementation query_pre_attn_scalar quantization_config pretraining_tp norm_topk_prob
    scoring_func topk_method routed_scaling_factor seq_aux output_router_logits
    router_jitter_noise ep_size n_group topk_group embd_pdrop summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    task_specific_params activation_function hidden_act hidden_activation mlp_hidden_act
    embed_pdrop gradient_checkpointing reorder_and_upcast_attn scale_attn_by_inverse_layer_idx
    scale_attn_weights use_parallel_residual attention_bias mlp_bias use_bias rms_norm_scale
    experts_per_token swiglu_limit initial_context_length id2label label2id model_type
    tie_word_embeddings sliding_window sliding_window_pattern _sliding_window_pattern
    layer_types use_sliding_window max_window_layers moe_intermediate_size n_shared_experts
    shared_expert_intermediate_size moe_shared_expert_intermediate_size first_k_dense_replace
    moe_layer_freq decoder_sparse_step mlp_only_layers use_qk_norm hidden_dropout_prob
    attention_probs_dropout_prob apply_residual_connection_post_layernorm masked_softmax_fusion
    slow_but_exact skip_bias_add skip_bias_add_qkv bias_dropout_fusion use_mamba_kernels
    mamba_hidden_act mamba_proj_bias mamba_ssm_cache_dtype chunk_size conv_kernel expand
    rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_limit time_step_max
    time_step_min time_step_rank use_conv_bias num_logits_to_keep embedding_multiplier
    residual_multiplier attention_multiplier logits_scaling norm_type n_ctx unsloth_fixed
    unsloth_version tokenizer_class kv_head_dim rotary_emb_fraction attn_output_gate
    """.split()  # noqa: SIM905
)
