"""What `run` refuses before any process starts, and what it only warns of."""

import pytest

from steptally.engine.availability import EngineParts
from steptally.errors import InputError, MissingPartError
from steptally.job import job_from_settings
from steptally.run.preflight import fit_to_processes, prepare_run, training_state_bytes

PARTS = EngineParts(torch="2.13.0", megatron_core="0.16.1")
BASE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 256,
    "global_batch_size": 16,
    "add_bias_linear": False,
}
PP2 = {"world_size": 2, "pipeline_model_parallel_size": 2}
VPP2 = PP2 | {"virtual_pipeline_model_parallel_size": 2}
TP2 = {"world_size": 2, "tensor_model_parallel_size": 2}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform"}
EXPERTS = {"num_experts": 4}
EP2 = EXPERTS | {"world_size": 2, "expert_model_parallel_size": 2}
OVERLAP = EP2 | {
    "overlap_moe_expert_parallel_comm": True,
    "moe_token_dispatcher_type": "alltoall",
    "bf16": True,
}


def prepared(values, **options):
    job = job_from_settings(BASE | values, source="job.yaml")
    return prepare_run(job, process_count=job.layout.world_size, parts=PARTS, **options)


REFUSED = {
    "batched communication between two interleaved stages": (
        VPP2 | {"overlap_p2p_communication": False},
        "virtual_pipeline_model_parallel_size 2 and without overlap_p2p_communication",
    ),
    "fewer micro-batches than stages": (
        VPP2 | {"global_batch_size": 1},
        "2 stages and 1 micro-batches: .* global_batch_size of at least 2",
    ),
    "a last group smaller than the stages": (
        VPP2 | {"global_batch_size": 5},
        "5 micro-batches leave 1 .* global_batch_size of 4 or 6",
    ),
    "a layout that forgets a layer": (
        PP2 | {"pipeline_model_parallel_layout": "Et|ttL"},
        r"reads EtttL: it must be E .* 4 times t",
    ),
    "a layout of the wrong number of stages": (
        PP2 | {"pipeline_model_parallel_layout": "Et|t|ttL"},
        "has 3 stages, .* pipeline_model_parallel_size 2",
    ),
    "a layout that interleaves with batched communication": (
        PP2 | {"pipeline_model_parallel_layout": "Et|t|t|tL", "overlap_p2p_communication": False},
        "would mix up the two messages",
    ),
    "a layout of other chunks than stated": (
        VPP2 | {"pipeline_model_parallel_layout": "Et|tttL"},
        "has 2 stages, virtual_pipeline_model_parallel_size 2 wants 4",
    ),
    "two ways to say how layers are split": (
        PP2 | {"pipeline_model_parallel_layout": "Et|tttL", "decoder_first_pipeline_num_layers": 1},
        "pipeline_model_parallel_layout and decoder_first_pipeline_num_layers",
    ),
    "an uneven split that counts the embedding as well": (
        PP2
        | {
            "decoder_first_pipeline_num_layers": 1,
            "account_for_embedding_in_pipeline_split": True,
        },
        "remove account_for_embedding_in_pipeline_split",
    ),
    "too few positions": (
        {"max_position_embeddings": 16, "position_embedding_type": "rope"},
        "max_position_embeddings 16 is less than seq_length 32",
    ),
    "full recomputation of no stated unit": (FULL, "needs recompute_num_layers"),
    "activations that are split already": (
        TP2
        | FULL
        | {
            "sequence_parallel": True,
            "recompute_num_layers": 1,
            "distribute_saved_activations": True,
        },
        "distribute_saved_activations needs",
    ),
    "recomputing a module that the model lacks": (
        {"recompute_granularity": "selective", "recompute_modules": "moe"},
        "recompute_modules names moe: this job can recompute core_attn, layernorm, mlp",
    ),
    "recomputing norms without Transformer Engine": (
        {"recompute_granularity": "selective", "recompute_modules": "layernorm"},
        "layernorm, which fails in megatron-core",
    ),
    "two activations": ({"swiglu": True, "squared_relu": True}, "swiglu and squared_relu"),
    "a stated fusion without a kernel": (
        {"quick_geglu": True, "add_bias_linear": True, "bias_gelu_fusion": True},
        "no kernel for quick_geglu",
    ),
    "experts with tensor but not sequence parallelism": (
        EXPERTS | TP2,
        "trains only with sequence_parallel",
    ),
    "experts in fp16": (EP2 | {"fp16": True}, "does not train in fp16"),
    "one expert a token": (EXPERTS | {"moe_router_topk": 1}, "moe_router_topk is 1"),
    "Sinkhorn routing with an auxiliary loss": (
        EXPERTS | {"moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0.1},
        "balances by itself: remove moe_aux_loss_coeff 0.1",
    ),
    "split experts with biases": (
        EXPERTS | TP2 | {"sequence_parallel": True, "add_bias_linear": True},
        "expert_tensor_parallel_size 1, which is 2",
    ),
    "experts with biases": (
        EXPERTS | {"add_bias_linear": True},
        "add_bias_linear in experts fails in megatron-core 0.16.1's own layers",
    ),
    "shared experts with biases": (
        EXPERTS | {"add_bias_linear": True, "moe_shared_expert_intermediate_size": 64},
        "shared experts have no biases",
    ),
    "a stated fusion of experts with biases": (
        EXPERTS | {"add_bias_linear": True, "swiglu": True, "bias_swiglu_fusion": True},
        "bias_swiglu_fusion has no kernel for experts with biases",
    ),
    "padding to no stated capacity": (
        EXPERTS | {"moe_pad_expert_input_to_capacity": True},
        "needs moe_expert_capacity_factor",
    ),
    "overlapping shared experts that do not exist": (
        EXPERTS | {"moe_shared_expert_overlap": True},
        "needs moe_shared_expert_intermediate_size",
    ),
    "overlapping shared experts with an all-gather": (
        EXPERTS | {"moe_shared_expert_overlap": True, "moe_shared_expert_intermediate_size": 64},
        "needs moe_token_dispatcher_type alltoall, which is allgather",
    ),
    "overlapping the all-to-all in fp32": (OVERLAP | {"bf16": False}, "needs bf16 or fp16"),
    "overlapping the all-to-all in a plain pipeline": (
        OVERLAP | {"pipeline_model_parallel_size": 2, "world_size": 4},
        "needs virtual_pipeline_model_parallel_size",
    ),
    "optimizer instances without a distributed optimizer": (
        {"world_size": 2, "num_distributed_optimizer_instances": 2},
        "needs use_distributed_optimizer",
    ),
    "optimizer instances that do not divide": (
        {
            "world_size": 4,
            "num_distributed_optimizer_instances": 3,
            "use_distributed_optimizer": True,
        },
        "instances 3 does not divide dp · cp = 4",
    ),
    "a rank order that experts cannot have": (
        EXPERTS
        | PP2
        | {
            "world_size": 4,
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "expert_tensor_parallel_size": 1,
            "use_tp_pp_dp_mapping": True,
        },
        r"replicas of the experts \(2\) as of the other layers \(1\)",
    ),
    "an all-gather of unequal parts over gloo": (
        EXPERTS
        | {
            "world_size": 4,
            "tensor_model_parallel_size": 2,
            "expert_model_parallel_size": 2,
            "sequence_parallel": True,
            "moe_token_dispatcher_type": "alltoall",
        },
        "expert_tensor_parallel_size 2 gathers unequal numbers",
    ),
    "a recomputed MLP with biases": (
        {
            "recompute_granularity": "selective",
            "recompute_modules": "mlp",
            "add_bias_linear": True,
        },
        "backward never ends",
    ),
    "more padded capacity than tokens": (
        EXPERTS | {"moe_expert_capacity_factor": 2.1, "moe_pad_expert_input_to_capacity": True},
        "rows of a rank's 32 tokens",
    ),
    "query groups shared between tensor ranks": (
        TP2 | {"num_query_groups": 1},
        "num_query_groups 1 is not divisible by tensor_model_parallel_size 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(case):
    values, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as raised:
        prepared(values)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        VPP2,
        PP2 | {"pipeline_model_parallel_layout": "Et|t*3L"},
        VPP2 | {"pipeline_model_parallel_layout": "E(t|)*3tL"},
        PP2 | {"num_layers": 6, "pipeline_model_parallel_layout": "E(tt|)*1t*4L"},
        OVERLAP,
        {"world_size": 8, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    ],
)
def test_it_lets_what_runs_pass(values):
    assert prepared(values).warnings == ()


def test_what_megatron_lm_would_turn_off_is_told():
    (warning,) = prepared({"sequence_parallel": True}).warnings
    assert "sequence_parallel" in warning


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"states hiden_dropout \(did you mean 'hidden_dropout'"):
        prepared({"hiden_dropout": 0.2})


def test_many_unknown_settings_are_summarised():
    with pytest.raises(InputError, match="q0, q1, q2, q3, q4 and 3 more"):
        prepared({f"q{number}": 1 for number in range(8)})


def test_a_missing_engine_is_named_before_anything_else():
    job = job_from_settings(BASE | {"q": 1})
    with pytest.raises(MissingPartError, match=r"pip install 'steptally\[engine\]'"):
        prepare_run(job, process_count=1, parts=EngineParts(torch=None, megatron_core=None))


def test_a_job_without_a_stated_world_grows_to_the_processes():
    job = job_from_settings({name: BASE[name] for name in BASE if name != "global_batch_size"})
    fitted = fit_to_processes(job, 4)
    assert fitted.layout.data_parallel_size == 4
    assert fitted.layout.global_batch_size == 4  # Megatron's default: one micro-batch a replica
    assert "lr" in fitted.assumed
    assert "num_layers" not in fitted.assumed


def test_what_a_reader_assumed_survives_the_fitting():
    job = job_from_settings(BASE, assumed={"seq_length": "32 (the reader's guess)"})
    fitted = fit_to_processes(job, 2)
    assert fitted.assumed["seq_length"] == "32 (the reader's guess)"
    assert fitted.layout.seq_length == 32


def test_a_stated_world_of_another_size_is_refused_with_both_numbers():
    job = job_from_settings(BASE | {"world_size": 2}, source="job.yaml")
    with pytest.raises(InputError, match=r"world_size 2 .* 3 processes .* --nproc 2"):
        fit_to_processes(job, 3)


def test_processes_that_the_layout_does_not_divide_are_refused():
    job = job_from_settings(BASE | {"tensor_model_parallel_size": 2})
    with pytest.raises(InputError, match="world_size 3"):
        fit_to_processes(job, 3)


def test_too_little_memory_for_the_processes_is_a_warning_with_both_figures():
    # 8 · (440 MiB of imports + 212,992 parameters · 16 bytes) = 3.46 GiB.
    (warning,) = prepared({"world_size": 8}, memory_bytes=2**30).warnings
    assert "8 processes need at least 3.5 GiB" in warning
    assert "this machine has 1.0 GiB" in warning


def test_a_model_whose_state_alone_does_not_fit_is_refused():
    # 212,992 parameters · 16 bytes = 3.25 MiB of weights, gradients and Adam's state a replica.
    with pytest.raises(InputError, match=r"at least 0.0 GiB, and this machine has 0.0 GiB"):
        prepared({"world_size": 8}, memory_bytes=2**20)


def test_training_state_is_sixteen_bytes_a_parameter_in_fp32():
    # 4 layers of 4·64² (attention) + 2·64·256 (MLP) = 49,152 and an embedding of 256·64:
    # 212,992 parameters, of 4 bytes each for weight, gradient and Adam's two averages.
    assert training_state_bytes(job_from_settings(BASE)) == 212_992 * 16


def test_the_distributed_optimizer_keeps_adams_averages_once():
    two = BASE | {"world_size": 2}
    whole = training_state_bytes(job_from_settings(two))
    split = training_state_bytes(job_from_settings(two | {"use_distributed_optimizer": True}))
    assert whole - split == 212_992 * 8
