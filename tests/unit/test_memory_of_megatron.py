"""Activations against real megatron-core layers, run on fake tensors in a subprocess.

Differences that stay are of running on a CPU (docs/formulas/memory.md lists them by name).
"""

import pytest
from tests.megatron_oracle import ask_megatron

from steptally.job import job_from_settings
from steptally.predict.memory.stage import all_stages

BASE = {
    "num_layers": 1,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_query_groups": 2,
    "ffn_hidden_size": 1536,
    "swiglu": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "seq_length": 512,
    "vocab_size": 1024,
    "global_batch_size": 2,
    "bf16": True,
    "transformer_impl": "local",
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "attention_dropout": 0,
    "hidden_dropout": 0,
    "accumulate_allreduce_grads_in_fp32": True,
}
CASES = {
    "sequence parallel": {
        "world_size": 2,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
    },
    "core attention again": {"recompute_granularity": "selective"},
    "experts": {
        "world_size": 4,
        "expert_model_parallel_size": 4,
        "global_batch_size": 8,
        "num_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 512,
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
        "moe_token_dispatcher_type": "alltoall",
    },
}
PIPELINE = {
    "world_size": 4,
    "pipeline_model_parallel_size": 4,
    "num_layers": 4,
    "global_batch_size": 5,
}


@pytest.fixture(scope="module")
def answers():
    cases = [{"settings": {**BASE, **changes}, "rank": 0} for changes in CASES.values()]
    cases.append({"settings": {**BASE, **PIPELINE}, "rank": 1})
    return dict(zip([*CASES, "pipeline"], ask_megatron("memory", cases), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_layer_keeps_what_real_layers_keep(answers, name):
    (stage,) = all_stages(job_from_settings({**BASE, **CASES[name]}))
    # Of the second micro-batch: the first also makes what lasts.
    forward = [mark for mark in answers[name] if mark[0] == "forward"][-1]
    backward = [mark for mark in answers[name] if mark[0] == "backward"][-1]
    _, before, after, _ = forward
    part = stage.footprints[0]
    assert part.saved == pytest.approx(after - before, rel=0.006)
    assert part.backward_peak == pytest.approx(backward[3] - before, rel=0.006)


def test_a_stage_of_1f1b_reaches_its_peak_with_all_in_flight(answers):
    stage = all_stages(job_from_settings({**BASE, **PIPELINE}))[1]
    assert stage.moment.in_flight == (3,)
    workspaces = sum(
        line.bytes
        for line in stage.lines
        if line.lifetime == "transient" and "cuBLAS" not in line.name
    )
    measured = max(most for *_, most in answers["pipeline"])
    assert stage.activation_peak + workspaces == pytest.approx(measured, rel=0.01)
