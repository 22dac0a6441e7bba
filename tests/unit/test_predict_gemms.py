"""Shapes of the products of one rank: public cases, attention, experts, MTP, recomputation."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings, read_job
from steptally.job.catalog.devices import find_device
from steptally.job.device import Device
from steptally.predict.gemm_relief import changed_jobs, with_relief
from steptally.predict.gemms import predict_gemms
from steptally.predict.gemms_tally import gemms_tally
from steptally.predict.roofline import dense_peak
from steptally.tally import tally_from_json

SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "bf16": True,
    "transformer_impl": "local",
}


def rows(name, phase="forward", rank=0, **settings):
    job = job_from_settings({**SMALL, **settings})
    return [row for row in predict_gemms(job, rank) if (row.name, row.phase) == (name, phase)]


def shapes(*arguments, **settings):
    return [(row.m, row.n, row.k, row.batch, row.calls) for row in rows(*arguments, **settings)]


@pytest.mark.parametrize(
    ("case", "vocab_size", "tp", "columns"),
    [
        ("M105-03: 33708 padded to a multiple of 128", 33708, 1, 33792),
        ("M105-08: 50257 padded to a multiple of 128", 50257, 1, 50304),
        ("M105-08: 50257 padded to a multiple of 128 · 8, of which a rank has 1/8", 50257, 8, 6400),
    ],
)
def test_the_head_multiplies_the_padded_vocabulary(case, vocab_size, tp, columns):
    (row,) = rows(
        "output_layer",
        vocab_size=vocab_size,
        num_attention_heads=8,
        tensor_model_parallel_size=tp,
        world_size=tp,
    )
    assert row.n == columns, case
    assert row.misaligned == ""


def test_m105_03_an_unpadded_vocabulary_is_misaligned_and_8_mends_it():
    # tensorflow/models#7407: 33708 → 33712 in fp16 saved 35 ms a step.
    plain = {"bf16": False, "fp16": True, "vocab_size": 33708}
    (row,) = rows("output_layer", make_vocab_size_divisible_by=1, **plain)
    assert row.misaligned == "n 33708 (multiple of 8)"
    (row,) = rows("output_layer", make_vocab_size_divisible_by=8, **plain)
    assert (row.n, row.misaligned) == (33712, "")


QWEN = {
    "expert_model_parallel_size": 8,
    "world_size": 8,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "seq_length": 4096,
    "bf16": True,
}


def test_m105_05_rows_of_each_expert_of_qwen3_30b_a3b():
    # yanring/Megatron-MoE-ModelZoo#7: EP8, 4096 tokens, topk 8 of 128 → 4096 · 8 · 8 / 128 rows.
    job = read_job("qwen3-30b-a3b", [f"{name}={value}" for name, value in QWEN.items()])
    found = {
        (row.name, row.m, row.n, row.k, row.calls)
        for row in predict_gemms(job)
        if row.phase == "forward" and row.name.startswith("experts.")
    }
    calls = 16 * 48 * 8  # experts of a rank, layers, micro-batches
    assert found == {
        ("experts.linear_fc1", 2048, 2 * 768, 2048, calls),
        ("experts.linear_fc2", 2048, 2048, 768, calls),
    }


@pytest.mark.parametrize(
    ("case", "tflops", "percent"),
    [
        ("M105-05", 150, 6.7),
        # marin-community/marin#7012: the same shapes by two backends.
        ("M105-06 Pallas-Triton, least", 397, 18),
        ("M105-06 Pallas-Triton, most", 859, 38),
        ("M105-06 tuned, least", 1470, 65),
        ("M105-06 tuned, most", 1560, 69),
    ],
)
def test_reached_parts_of_the_dense_peak_of_b200(case, tflops, percent):
    share = tflops * 1e12 / dense_peak(find_device("B200"), "bf16")
    assert round(100 * share, 1 if percent < 10 else 0) == percent, case


def test_grouped_experts_are_one_batched_product():
    experts = {"num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 2}
    apart = shapes("experts.linear_fc1", world_size=2, **experts)
    together = shapes("experts.linear_fc1", world_size=2, moe_grouped_gemm=True, **experts)
    assert apart == [(16, 256, 64, 1, 2 * 4)]  # 32 · 2 · 2 / 8 rows; layers · experts
    assert together == [(16, 256, 64, 4, 2)]


def test_capacity_limits_the_rows_of_an_expert():
    settings = {"num_experts": 8, "moe_router_topk": 2, "moe_expert_capacity_factor": 0.8}
    # ⌈32 · 2 / 8 · 0.8⌉ = 7
    (shape,) = shapes("experts.linear_fc1", moe_token_dispatcher_type="alltoall", **settings)
    assert shape[0] == 7


def test_axes_are_named_where_they_cut():
    settings = {
        "tensor_model_parallel_size": 2,
        "context_parallel_size": 2,
        "world_size": 4,
        "seq_length": 64,
    }

    def cuts(*product):
        return {row.cuts for row in rows(*product, **settings)}

    assert cuts("linear_qkv", "forward") == {"m/cp, n/tp"}
    assert cuts("linear_qkv", "wgrad") == {"m/tp, k/cp"}
    assert cuts("linear_proj", "forward") == {"m/cp, k/tp"}
    assert cuts("core_attention.qk", "forward") == {"batch/tp, queries/cp"}


def test_unfused_attention_multiplies_the_square_and_flash_what_is_visible():
    (square,) = rows("core_attention.qk")
    (flash,) = rows("core_attention.qk", transformer_impl="transformer_engine")
    assert (square.m, square.n, square.k, square.batch) == (32, 32, 16, 4)
    assert square.flops == 2 * 2 * 32 * 32 * 16 * 4
    assert flash.flops == 2 * 2 * (32 * 33 // 2) * 16 * 4
    # Flash never writes the scores: Q and K only.
    assert flash.bytes == 2 * 4 * (32 * 16 + 16 * 32)


def test_flash_attention_computes_the_scores_again_in_backward():
    assert len(rows("core_attention.qk", "dgrad")) == 2
    flash = rows("core_attention.qk", "dgrad", transformer_impl="transformer_engine")
    assert len(flash) == 3


def test_latent_attention_has_down_and_up_projections():
    settings = {
        "multi_latent_attention": True,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_head_dim": 8,
        "qk_pos_emb_head_dim": 4,
        "v_head_dim": 8,
    }
    assert shapes("linear_q_down_proj", **settings) == [(32, 24, 64, 1, 2)]
    assert shapes("linear_q_up_proj", **settings) == [(32, 4 * 12, 24, 1, 2)]
    assert shapes("linear_kv_down_proj", **settings) == [(32, 16 + 4, 64, 1, 2)]
    assert shapes("linear_kv_up_proj", **settings) == [(32, 4 * 16, 16, 1, 2)]


def test_token_prediction_projects_two_hidden_states_and_runs_the_head_again():
    assert shapes("mtp.eh_proj", mtp_num_layers=1) == [(32, 64, 128, 1, 1)]
    assert shapes("mtp.output_layer", mtp_num_layers=1) == [(32, 128, 64, 1, 1)]


def test_only_the_last_stage_has_a_head():
    two = {"pipeline_model_parallel_size": 2, "world_size": 2}
    assert not shapes("output_layer", **two)
    assert len(shapes("output_layer", rank=1, **two)) == 1


def test_full_recomputation_repeats_forward_products_once_a_layer():
    again = {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 1,
    }
    assert shapes("linear_fc1", **again)[0][-1] == 2
    assert shapes("linear_fc1", "recompute", **again)[0][-1] == 1


def test_weight_gradients_added_in_place_move_the_main_gradient_twice():
    (fused,) = rows("linear_fc1", "wgrad", gradient_accumulation_fusion=True)
    (apart,) = rows("linear_fc1", "wgrad", gradient_accumulation_fusion=False)
    operands = 2 * (256 * 32 + 32 * 64)
    assert fused.bytes == operands + 2 * 4 * 256 * 64
    assert apart.bytes == operands + 2 * 256 * 64


def test_no_device_means_no_waves_and_a_warning_says_so():
    tally = gemms_tally(job_from_settings(SMALL))
    assert {row.waves for row in tally.accounts["gemms"]} == {None}
    assert any("--device" in warning for warning in tally.warnings)


def test_the_tally_survives_json():
    tally = gemms_tally(job_from_settings(SMALL), 0, find_device("A100 SXM 80"))
    again = tally_from_json(tally.dumps())
    assert again.accounts == {"gemms": list(tally.accounts["gemms"])}
    assert 0 < tally.summary["gemms_efficiency"].value < 1


def test_a_device_that_states_too_little_is_refused():
    bare = Device(name="bare", dense_peak_flops_per_s={"bf16": 1e12})
    with pytest.raises(InputError, match="bare states no multiprocessors"):
        predict_gemms(job_from_settings(SMALL), 0, bare)


def test_mxfp8_is_refused_on_a_device_without_it():
    job = job_from_settings(
        {**SMALL, "transformer_impl": "transformer_engine", "fp8": "e4m3", "fp8_recipe": "mxfp8"}
    )
    with pytest.raises(InputError, match="mxfp8"):
        predict_gemms(job, 0, find_device("H100 SXM"))
    assert predict_gemms(job, 0, find_device("B200"))


def test_changes_keep_the_ranks_and_what_megatron_allows():
    job = job_from_settings(
        {**SMALL, "tensor_model_parallel_size": 2, "world_size": 4, "global_batch_size": 8}
    )
    changes = dict(changed_jobs(job))
    assert list(changes) == ["micro_batch_size 2", "tensor_model_parallel_size 1"]
    assert {changed.layout.world_size for changed in changes.values()} == {4}


def test_more_sequences_help_a_product_with_few_rows():
    job = job_from_settings({**SMALL, "hidden_size": 4096, "global_batch_size": 8})
    device = find_device("A100 SXM 80")
    relieved = with_relief(predict_gemms(job, 0, device), job, 0, device)
    (row,) = [row for row in relieved if (row.name, row.phase) == ("linear_fc1", "forward")]
    assert row.bound == "memory"
    assert row.restore.startswith("micro_batch_size 2: ")
