"""Terms beyond a dense GPT: experts, latent attention, MTP, Mamba, partial recomputation.

Executed counts with `transformer_impl local` were compared with the matrix products of real
megatron-core 0.16.1, summed over ranks; the figures below are worked out by hand.
"""

import pytest

from steptally.job import job_from_settings
from steptally.predict import flops_per_step, predict_flops

SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "ffn_hidden_size": 128,
    "seq_length": 16,
    "vocab_size": 128,
    "global_batch_size": 4,
    "transformer_impl": "local",
}
TOKENS = 64
EXPERTS = {**SMALL, "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 96}


def forward(settings):
    account = predict_flops(job_from_settings(settings))
    return {row.name: (row.useful, row.executed) for row in account if row.phase == "forward"}


def test_a_token_goes_through_its_experts_the_router_and_the_shared_experts():
    terms = forward({**EXPERTS, "moe_shared_expert_intermediate_size": 32})
    layers = 2
    assert terms["router"] == (layers * 2 * TOKENS * 64 * 8,) * 2
    assert terms["experts.linear_fc1"] == (layers * 2 * (2 * TOKENS) * 64 * 96,) * 2
    assert terms["experts.linear_fc2"] == (layers * 2 * (2 * TOKENS) * 96 * 64,) * 2
    assert terms["shared_experts.linear_fc1"] == (layers * 2 * TOKENS * 64 * 32,) * 2
    assert "linear_fc1" not in terms


def test_padding_to_capacity_executes_every_slot():
    padded = forward(
        {
            **EXPERTS,
            "moe_expert_capacity_factor": 1.3,
            "moe_pad_expert_input_to_capacity": True,
        }
    )
    # 16 tokens a micro-batch: ⌈16 · 2 / 8 · 1.3⌉ = 6 slots for each of 8 experts, for 32 needed.
    useful, executed = padded["experts.linear_fc1"]
    assert (useful, executed) == (2 * 2 * 128 * 64 * 96, 2 * 2 * (4 * 48) * 64 * 96)


def test_a_capacity_below_the_balance_drops_slots():
    dropped = forward({**EXPERTS, "moe_expert_capacity_factor": 0.5})
    useful, executed = dropped["experts.linear_fc1"]
    assert executed * 2 == useful


def test_latent_experts_work_on_the_latent_width():
    latent = {**EXPERTS, "moe_latent_size": 16, "transformer_impl": "transformer_engine"}
    terms = forward(latent)
    assert terms["fc1_latent_proj"][0] == 2 * 2 * TOKENS * 64 * 16
    assert terms["experts.linear_fc1"][0] == 2 * 2 * (2 * TOKENS) * 16 * 96


def test_latent_attention_counts_its_low_rank_projections():
    terms = forward(
        {
            **SMALL,
            "multi_latent_attention": True,
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "qk_head_dim": 16,
            "qk_pos_emb_head_dim": 8,
            "v_head_dim": 12,
        }
    )
    layers = 2
    for name, inputs, outputs in (
        ("linear_q_down_proj", 64, 24),
        ("linear_q_up_proj", 24, 4 * (16 + 8)),
        ("linear_kv_down_proj", 64, 32 + 8),
        ("linear_kv_up_proj", 32, 4 * (16 + 12)),
        ("linear_proj", 4 * 12, 64),
    ):
        assert terms[name][0] == layers * 2 * TOKENS * inputs * outputs, name
    pairs = 4 * 16 * 17 // 2  # 4 sequences
    assert terms["core_attention.qk"][0] == layers * 2 * pairs * 4 * (16 + 8)
    assert terms["core_attention.pv"][0] == layers * 2 * pairs * 4 * 12


def test_transformer_engine_duplicates_the_down_projections_without_sequence_parallelism():
    latent = {**SMALL, "multi_latent_attention": True, "tensor_model_parallel_size": 2}
    latent["transformer_impl"] = "transformer_engine"
    split = forward({**latent, "sequence_parallel": True})["linear_kv_down_proj"]
    copied = forward(latent)["linear_kv_down_proj"]
    assert copied == (split[0], 2 * split[1])


def test_each_prediction_depth_is_a_projection_a_layer_and_a_head():
    without, with_two = forward(SMALL), forward({**SMALL, "mtp_num_layers": 2})
    assert with_two["mtp.eh_proj"][0] == 2 * 2 * TOKENS * 128 * 64
    assert with_two["mtp.output_layer"][0] == 2 * without["output_layer"][0]
    assert with_two["mtp.linear_qkv"][0] == without["linear_qkv"][0]  # 2 depths for 2 layers
    assert {name: with_two[name] for name in without} == without


def test_a_hybrid_model_counts_each_letter_once():
    pattern = {**SMALL, "num_layers": 4, "hybrid_override_pattern": "M*M-"}
    terms = forward({**pattern, "mamba_num_groups": 2, "mamba_state_dim": 16})
    inner, heads, states = 128, 2, 2 * 2 * 16
    assert terms["mamba.in_proj"][0] == 2 * 2 * TOKENS * 64 * (2 * inner + states + heads)
    assert terms["mamba.out_proj"][0] == 2 * 2 * TOKENS * inner * 64
    assert terms["mamba.conv1d"][0] == 2 * 2 * TOKENS * 4 * (inner + states)
    assert terms["mamba.scan"][0] == 2 * 5 * TOKENS * inner * 16
    assert terms["linear_qkv"][0] == 2 * TOKENS * 64 * 192
    assert terms["linear_fc1"][0] == 2 * TOKENS * 64 * 128


@pytest.mark.parametrize(
    ("modules", "again"),
    [
        ("core_attn", ("core_attention.qk", "core_attention.pv")),
        ("mlp", ("linear_fc1", "linear_fc2")),
        ("layernorm", ()),
        ("moe_act", ()),
        (
            "moe",
            (
                "router",
                "experts.linear_fc1",
                "experts.linear_fc2",
                "shared_experts.linear_fc1",
                "shared_experts.linear_fc2",
            ),
        ),
        ("shared_experts", ("shared_experts.linear_fc1", "shared_experts.linear_fc2")),
    ],
)
def test_selective_recompute_runs_the_products_of_its_modules_again(modules, again):
    settings = {
        **EXPERTS,
        "moe_layer_freq": [0, 1],
        "moe_shared_expert_intermediate_size": 32,
        "moe_grouped_gemm": True,
        "transformer_impl": "transformer_engine",
        "recompute_granularity": "selective",
        "recompute_modules": modules,
    }
    account = predict_flops(job_from_settings(settings))
    assert {row.name for row in account if row.phase == "recompute"} == set(again)
    once = forward(settings)
    for row in account:
        if row.phase == "recompute":
            assert (row.useful, row.executed) == (0, once[row.name][1])


def test_full_recompute_runs_prediction_depths_again_with_uniform_only():
    full = {"recompute_granularity": "full", "recompute_num_layers": 1, "mtp_num_layers": 1}
    base = flops_per_step(job_from_settings({**SMALL, "mtp_num_layers": 1})).executed
    one_layer = flops_per_step(job_from_settings({**SMALL, "num_layers": 3})).executed
    one_layer -= flops_per_step(job_from_settings(SMALL)).executed
    uniform = flops_per_step(
        job_from_settings({**SMALL, **full, "recompute_method": "uniform"})
    ).executed
    block = flops_per_step(
        job_from_settings({**SMALL, **full, "recompute_method": "block"})
    ).executed
    projection = 2 * TOKENS * 128 * 64
    assert uniform - base == 3 * one_layer // 3 + projection
    assert block - base == one_layer // 3
