"""The whole model's parameters are those of its ranks."""

import pytest

from steptally.job import job_from_settings
from steptally.predict import predict_parameters
from steptally.predict.shards import stage_shards

SMALL = {
    "num_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
}
EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 48, "moe_layer_freq": [0, 1, 1]}
LATENT_ATTENTION = {
    "multi_latent_attention": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
    "qk_layernorm": True,
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"swiglu": True, "untie_embeddings_and_output_weights": True, "add_bias_linear": False},
        {"num_query_groups": 2, "kv_channels": 24, "add_qkv_bias": True, "qk_layernorm": True},
        {"attention_output_gate": True, "normalization": "RMSNorm"},
        EXPERTS,
        {**EXPERTS, "moe_shared_expert_intermediate_size": 32, "add_bias_linear": False},
        {**EXPERTS, "moe_latent_size": 32, "transformer_impl": "transformer_engine"},
        LATENT_ATTENTION,
        {**LATENT_ATTENTION, **EXPERTS, "mtp_num_layers": 1},
        {"hybrid_override_pattern": "M*-", "mamba_num_groups": 2, "mamba_state_dim": 16},
    ],
)
def test_a_single_rank_holds_every_parameter_of_the_model(settings):
    job = job_from_settings({**SMALL, **settings})
    held = sum(shard.elements for chunk in stage_shards(job, 0) for shard in chunk)
    assert sum(row.count for row in predict_parameters(job)) == held
