"""Assumed defaults give way to what is installed and say so; stated settings never change."""

import pytest

from steptally.engine.adapt import adapt, require_layers, uses_transformer_engine
from steptally.engine.availability import EngineParts
from steptally.errors import MissingPartError
from steptally.job import job_from_settings

ON_CPU = EngineParts(torch="2.13.0", megatron_core="0.16.1")
ON_CUDA = EngineParts(
    torch="2.13.0", megatron_core="0.16.1", transformer_engine="2.9", apex="0.1", cuda=True
)
BASE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 256,
}


def job(**values):
    return job_from_settings(BASE | values)


def test_without_transformer_engine_layers_are_local_and_attention_unfused():
    recipe = adapt(job(), ON_CPU).recipe
    assert (recipe.transformer_impl, recipe.attention_backend) == ("local", "unfused")


def test_with_transformer_engine_nothing_gives_way():
    rotated = job(position_embedding_type="rope")
    adapted = adapt(rotated, ON_CUDA)
    assert uses_transformer_engine(adapted, ON_CUDA)
    kept = ("apply_rope_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion")
    assert all(getattr(adapted.recipe, name) for name in kept)
    assert adapted.recipe.attention_backend == "auto"


@pytest.mark.parametrize(
    "name", ["masked_softmax_fusion", "gradient_accumulation_fusion", "apply_rope_fusion"]
)
def test_an_assumed_fusion_without_its_kernel_is_switched_off_with_a_reason(name):
    adapted = adapt(job(position_embedding_type="rope"), ON_CPU)
    assert getattr(adapted.recipe, name) is False
    assert adapted.assumed[name].startswith("False (")


def test_a_stated_fusion_is_left_for_preflight_to_refuse():
    assert adapt(job(masked_softmax_fusion=True), ON_CPU).recipe.masked_softmax_fusion is True


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"squared_relu": True}, "bias_gelu_fusion"),
        ({"quick_geglu": True}, "bias_gelu_fusion"),
        ({"add_bias_linear": False}, "bias_gelu_fusion"),
        ({"num_experts": 2, "swiglu": True}, "bias_swiglu_fusion"),
    ],
)
def test_an_activation_without_a_fused_kernel_runs_unfused(values, name):
    assert getattr(adapt(job(**values), ON_CPU).recipe, name) is False


def test_only_the_interleaved_schedule_overlaps_pipeline_communication():
    pipelined = {"pipeline_model_parallel_size": 2, "num_layers": 4}
    interleaved = pipelined | {"virtual_pipeline_model_parallel_size": 2}
    assert adapt(job(**pipelined), ON_CPU).recipe.overlap_p2p_communication is False
    assert adapt(job(**interleaved), ON_CPU).recipe.overlap_p2p_communication is True


def test_adapting_twice_changes_nothing_more():
    once = adapt(job(bf16=True), ON_CPU)
    assert adapt(once, ON_CPU) == once


def test_stated_transformer_engine_that_is_missing_is_refused_with_both_ways_out():
    with pytest.raises(MissingPartError) as raised:
        require_layers(job(transformer_impl="transformer_engine"), ON_CPU)
    assert "transformer_engine[pytorch]" in str(raised.value)
    assert "transformer_impl=local" in str(raised.value)
