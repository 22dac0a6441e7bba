"""Single changes that would make a job fit, and what they cost."""

import pytest

from steptally.job import job_from_settings, read_job
from steptally.job.catalog.devices import find_device
from steptally.predict.flops import flops_per_step
from steptally.predict.memory import memory_tally, predict_changes
from steptally.predict.memory.changes import worst_rank

GPT3 = (
    "tensor_model_parallel_size=8",
    "pipeline_model_parallel_size=8",
    "world_size=64",
    "global_batch_size=64",
    "bf16=true",
)
FULL = "recompute_granularity=full recompute_method=uniform recompute_num_layers=1"
DEVICE = find_device("a100-sxm-80")


@pytest.fixture(scope="module")
def changes():
    return predict_changes(read_job("gpt3-175b", GPT3), DEVICE)


def test_each_change_needs_less_and_says_whether_it_fits(changes):
    now = worst_rank(read_job("gpt3-175b", GPT3), DEVICE).total_bytes
    for change in changes:
        assert change.total_bytes < now
        assert change.fits == (change.total_bytes <= DEVICE.memory_bytes)


def test_those_that_fit_come_first_and_the_cheapest_of_them_before_all(changes):
    order = [(not change.fits, round(change.difference, 6)) for change in changes]
    assert order == sorted(order)


def test_full_recomputation_costs_a_third_more_flops_of_the_layers(changes):
    full = next(change for change in changes if change.name == FULL)
    job = read_job("gpt3-175b", (*GPT3, *FULL.split()))
    assert full.flops_per_step_executed == flops_per_step(job).executed
    assert 0.32 < full.difference < 1 / 3  # the LM head does not run again
    assert full.total_bytes == worst_rank(job, DEVICE).total_bytes


def test_what_megatron_would_refuse_is_not_proposed(changes):
    # 64 ranks are TP 8 · PP 8: neither can be doubled, and there is no data parallelism to shard.
    names = " ".join(change.name for change in changes)
    assert "tensor_model_parallel_size" not in names
    assert "use_distributed_optimizer" not in names


def test_what_megatron_would_build_and_not_train_is_not_proposed(changes):
    # A recomputed MLP with biases never ends its backward; without biases it is a change as any.
    mlp = "recompute_granularity=selective recompute_modules=mlp"
    assert mlp not in [change.name for change in changes]
    settings = (*GPT3, "add_bias_linear=false")
    assert mlp in [change.name for change in predict_changes(read_job("gpt3-175b", settings))]


def test_experts_have_modules_of_their_own_to_recompute():
    settings = ("expert_model_parallel_size=4", "world_size=8", "global_batch_size=8", "bf16=true")
    names = {change.name for change in predict_changes(read_job("mixtral-8x7b", settings), DEVICE)}
    assert "recompute_granularity=selective recompute_modules=moe" in names
    assert "use_distributed_optimizer=true" in names


def test_a_job_that_fits_needs_no_change():
    job = job_from_settings(
        {
            "num_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "seq_length": 32,
            "vocab_size": 128,
            "bf16": True,
        }
    )
    tally = memory_tally(job, None, DEVICE)
    assert tally.summary["fits"].value is True
    assert "memory_changes" not in tally.accounts


def test_of_one_axis_the_smallest_step_that_fits_is_proposed():
    settings = ("world_size=8", "global_batch_size=64", "bf16=true", "use_distributed_optimizer=1")
    changes = predict_changes(read_job("llama-3-8b", settings), DEVICE)
    tensor = [change for change in changes if change.name.startswith("tensor_model")]
    (proposed,) = tensor
    assert proposed.fits
    size = int(proposed.name.split()[0].split("=")[1])
    if size > 2:
        fewer = f"tensor_model_parallel_size={size // 2}"
        job = read_job("llama-3-8b", (*settings, fewer, "sequence_parallel=true"))
        assert worst_rank(job, DEVICE).total_bytes > DEVICE.memory_bytes


def test_where_no_single_change_is_enough_what_helps_most_is_said():
    settings = ("world_size=8", "global_batch_size=64", "bf16=true")
    tally = memory_tally(read_job("gpt3-175b", settings), None, DEVICE)
    assert any("no single change makes it fit" in sentence for sentence in tally.warnings)
