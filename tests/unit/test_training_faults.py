"""What megatron-core 0.16.1 fails to train: every verb says it, a run refuses it.

Each was seen to fail in a real run on gloo (attention_output_gate: read in `SelfAttention`, which
needs Transformer Engine to share a query group).
"""

import re

import pytest

from steptally.job import job_from_settings
from steptally.job.training_faults import training_faults
from steptally.predict.account import predict
from steptally.predict.gemms_tally import gemms_tally
from steptally.predict.memory.tally import memory_tally
from steptally.predict.traffic_tally import traffic_tally

BASE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "add_bias_linear": False,
}
EXPERTS = {"num_experts": 4, "moe_router_topk": 2}
TP2 = {"tensor_model_parallel_size": 2, "world_size": 2}
PADDED = EXPERTS | {"moe_pad_expert_input_to_capacity": True}
MLP_AGAIN = {"recompute_granularity": "selective", "recompute_modules": "mlp"}
GATE = {"attention_output_gate": True}
LATENT = {"multi_latent_attention": True, "kv_lora_rank": 16, "v_head_dim": 16}

FAULTS = {
    "experts without sequence parallelism": (EXPERTS | TP2, "trains only with sequence_parallel"),
    "more capacity than tokens": (
        PADDED | {"moe_expert_capacity_factor": 2.1},
        "each expert 34 rows of a rank's 32 tokens, .* = 2",
    ),
    "more capacity than a rank's part of the tokens": (
        PADDED | TP2 | {"sequence_parallel": True, "moe_expert_capacity_factor": 2.1},
        "each expert 17 rows of a rank's 16 tokens",
    ),
    "a gate of a shared query group": (
        GATE | TP2 | {"num_query_groups": 1},
        "tensor_model_parallel_size of at most 1",
    ),
    "a gate of latent attention": (GATE | LATENT, "does not exist for multi_latent_attention"),
    "a recomputed MLP with biases": (
        MLP_AGAIN | {"add_bias_linear": True},
        "never ends, .* add_bias_linear=false",
    ),
}
TRAINED = {
    "experts with sequence parallelism": EXPERTS | TP2 | {"sequence_parallel": True},
    "as much capacity as tokens": PADDED | {"moe_expert_capacity_factor": 2.0},
    "more capacity than tokens, not padded": EXPERTS | {"moe_expert_capacity_factor": 8.0},
    "a gate of whole query groups": GATE | TP2 | {"num_query_groups": 2},
    "a recomputed MLP without biases": MLP_AGAIN,
    "experts in every layer, none of which is a recomputed MLP": EXPERTS
    | MLP_AGAIN
    | {"add_bias_linear": True},
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_job_that_does_not_train_is_told_so_in_one_sentence(case):
    values, words = FAULTS[case]
    (fault,) = training_faults(job_from_settings(BASE | values))
    assert fault.endswith(".")
    assert re.search(words, fault)


@pytest.mark.parametrize("case", TRAINED)
def test_a_job_that_trains_is_not(case):
    assert training_faults(job_from_settings(BASE | TRAINED[case])) == ()


@pytest.mark.parametrize("tally", [predict, gemms_tally, traffic_tally, memory_tally])
def test_every_account_says_it_beside_what_the_reader_noted(tally):
    job = job_from_settings(BASE | EXPERTS | TP2, notes=("read from a log",))
    warnings = tally(job).warnings
    assert "read from a log" in warnings
    assert sum("trains only with sequence_parallel" in warning for warning in warnings) == 1
