"""Parameters, gradients and optimizer state: bytes of a parameter, sharding, first steps."""

import pytest

from steptally.job import job_from_settings, read_job
from steptally.predict.memory.stage import all_stages
from steptally.predict.memory.timeline import timeline
from steptally.predict.parameters import predict_parameters

SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "global_batch_size": 8,
}


def lines(**changes):
    job = job_from_settings({**SMALL, **changes})
    count = sum(row.count for row in predict_parameters(job))
    (stage,) = all_stages(job)
    sizes = {
        line.name: line.bytes / count
        for line in stage.lines
        if line.lifetime in ("resident", "iteration")
    }
    return sizes, stage


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Megatron-LM's docs/source/user-guide/features/dist_optimizer.md: bytes of a parameter.
        ({"bf16": True, "accumulate_allreduce_grads_in_fp32": True}, 18),
        ({"fp16": True, "accumulate_allreduce_grads_in_fp32": False}, 16),
        ({}, 16),
        ({"bf16": True, "optimizer": "sgd"}, 14),
    ],
)
def test_bytes_of_a_parameter_without_sharding(changes, expected):
    assert sum(lines(**changes)[0].values()) == expected


def test_the_distributed_optimizer_leaves_6_bytes_and_12_over_its_ranks():
    # The same table: bf16 parameters and fp32 gradients, 6 + 12/d; padding to 8 · 128 elements.
    sizes, _ = lines(bf16=True, use_distributed_optimizer=True, world_size=8)
    assert sum(sizes.values()) == pytest.approx(6 + 12 / 8, rel=0.03)


def test_context_parallel_ranks_share_the_optimizer_too():
    with_context, _ = lines(
        bf16=True, use_distributed_optimizer=True, world_size=8, context_parallel_size=4
    )
    without, _ = lines(bf16=True, use_distributed_optimizer=True, world_size=8)
    assert with_context == without


def test_the_precision_aware_optimizer_keeps_the_lower_half_of_fp32_parameters():
    # OptimizerConfig.store_param_remainders, with bf16 parameters.
    sizes, _ = lines(
        bf16=True,
        use_distributed_optimizer=True,
        use_precision_aware_optimizer=True,
        exp_avg_dtype="bf16",
        exp_avg_sq_dtype="bf16",
        main_grads_dtype="bf16",
    )
    assert sum(sizes.values()) == pytest.approx(2 + 2 + 2 + 2 + 2, rel=0.03)


def test_m107_01_and_m107_02_the_first_optimizer_step_adds_its_moments_for_good():
    # NVIDIA/Megatron-LM#637, #640: 17.5 GB in the first step and 24.5 GB after, tp1 pp8 dp2 mbs 1:
    # Adam's moments, no leak. A 7B model has 0.81e9 to 0.94e9 parameters a stage: 8 bytes each.
    settings = ("pipeline_model_parallel_size=8", "world_size=16", "global_batch_size=64")
    job = read_job("llama-2-7b", (*settings, "bf16=true"))
    for stage in all_stages(job):
        events = timeline(job, stage)
        update = next(event for event in events if event.name == "optimizer")
        assert update.step == "first"
        assert 6.4e9 < update.after - update.before < 7.6e9
        peaks = {
            step: max(event.peak for event in events if (event.step, event.name) == (step, kind))
            for step, kind in (("first", "backward"), ("later", "backward"))
        }
        assert peaks["later"] - peaks["first"] == update.after - update.before


def test_a_checkpoint_needs_more_only_where_the_state_is_gathered():
    plain = lines(bf16=True, use_distributed_optimizer=True, world_size=4)[1]
    assert plain.checkpoint_peak == plain.lasting
    gathered = lines(
        bf16=True,
        use_distributed_optimizer=True,
        world_size=4,
        dist_ckpt_optim_fully_reshardable=True,
    )[1]
    elements = gathered.parameter_bytes // 2
    assert gathered.checkpoint_peak - gathered.lasting == 4 * (elements + elements // 4)


def test_sixteen_bit_gradients_are_copied_to_fp32_to_update():
    _, stage = lines(fp16=True, accumulate_allreduce_grads_in_fp32=False)
    assert stage.optimizer_temporary == next(
        line.bytes for line in stage.lines if line.name == "main parameters (fp32)"
    )


def test_gathering_in_fp8_leaves_no_bf16_copy_of_linear_weights():
    plain, _ = lines(bf16=True, fp8="hybrid", transformer_impl="transformer_engine")
    gathered, stage = lines(
        bf16=True,
        fp8="hybrid",
        transformer_impl="transformer_engine",
        use_distributed_optimizer=True,
        fp8_param_gather=True,
    )
    # What is left in bf16: embedding, head, norms, biases.
    assert gathered["parameters (bf16)"] < plain["parameters (bf16)"] / 2
    assert any(line.name == "workspace: FP8 weight copies" and line.bytes for line in stage.lines)
