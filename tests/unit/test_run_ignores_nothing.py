"""Every setting of a job is read by the engine, refused when it is on, or harmless for a reason."""

import dataclasses
import json

import pytest

pytest.importorskip("megatron.core")

from megatron.core import parallel_state

from steptally.engine import config, groups, model
from steptally.engine.availability import EngineParts
from steptally.errors import InputError, MissingPartError
from steptally.job import job_from_settings
from steptally.job.coerce import settings
from steptally.run.data import RANDOM, micro_batches, open_source
from steptally.run.ignored import CONDITIONAL, HARMLESS
from steptally.run.preflight import prepare_run

PARTS = EngineParts(torch="2.13.0", megatron_core="0.16.1")
BASE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 256,
    "global_batch_size": 16,
    "position_embedding_type": "rope",
}
EXPERTS = {"num_experts": 4, "add_bias_linear": False}
EP2 = EXPERTS | {"world_size": 2, "expert_model_parallel_size": 2}
TP2 = {"world_size": 2, "tensor_model_parallel_size": 2}
PP2 = {"world_size": 2, "pipeline_model_parallel_size": 2}
VPP2 = PP2 | {"virtual_pipeline_model_parallel_size": 2}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}

# Setting → (what else the job states, the value to try): what the engine is given must change.
READ = {
    "num_layers": ({}, 8),
    "hidden_size": ({}, 128),
    "num_attention_heads": ({"kv_channels": 16}, 8),
    "ffn_hidden_size": ({}, 96),
    "num_query_groups": ({}, 2),
    "kv_channels": ({}, 32),
    "vocab_size": ({}, 512),
    "make_vocab_size_divisible_by": ({}, 512),
    "padded_vocab_size": ({}, 384),
    "max_position_embeddings": ({}, 64),
    "position_embedding_type": ({}, "learned_absolute"),
    "rotary_base": ({}, 500000.0),
    "rotary_percent": ({}, 0.5),
    "normalization": ({}, "RMSNorm"),
    "norm_epsilon": ({}, 1e-6),
    "qk_layernorm": ({}, True),
    "attention_output_gate": ({}, True),
    "softmax_type": ({}, "off-by-one"),
    "swiglu": ({}, True),
    "geglu": ({}, True),
    "quick_geglu": ({"bias_gelu_fusion": False}, True),
    "squared_relu": ({"bias_gelu_fusion": False}, True),
    "add_bias_linear": ({}, False),
    "add_qkv_bias": ({"add_bias_linear": False}, True),
    "untie_embeddings_and_output_weights": ({}, True),
    "num_experts": ({"add_bias_linear": False}, 4),
    "moe_layer_freq": (EXPERTS, 2),
    "moe_router_topk": (EXPERTS, 3),
    "moe_ffn_hidden_size": (EXPERTS, 96),
    "moe_shared_expert_intermediate_size": (EXPERTS, 64),
    "moe_shared_expert_gate": (EXPERTS | {"moe_shared_expert_intermediate_size": 64}, True),
    "moe_router_dtype": (EXPERTS, "fp32"),
    "world_size": ({}, 2),
    "tensor_model_parallel_size": ({"world_size": 2}, 2),
    "pipeline_model_parallel_size": ({"world_size": 2}, 2),
    "virtual_pipeline_model_parallel_size": (PP2, 2),
    "expert_model_parallel_size": (EXPERTS | {"world_size": 2}, 2),
    "expert_tensor_parallel_size": (EXPERTS | TP2 | {"sequence_parallel": True}, 1),
    "sequence_parallel": (TP2, True),
    "use_tp_pp_dp_mapping": ({"world_size": 2}, True),
    "decoder_first_pipeline_num_layers": (PP2, 1),
    "decoder_last_pipeline_num_layers": (PP2, 1),
    "account_for_embedding_in_pipeline_split": ({}, True),
    "account_for_loss_in_pipeline_split": ({}, True),
    "pipeline_model_parallel_layout": (PP2, "Et|tttL"),
    "microbatch_group_size_per_vp_stage": (VPP2, 4),
    "seq_length": ({}, 64),
    "micro_batch_size": ({}, 2),
    "global_batch_size": ({}, 8),
    "recompute_granularity": ({}, "selective"),
    "recompute_method": (FULL, "block"),
    "recompute_num_layers": (FULL, 2),
    "recompute_modules": (
        {"recompute_granularity": "selective", "add_bias_linear": False},
        "mlp",
    ),
    "distribute_saved_activations": (TP2 | FULL, True),
    "num_distributed_optimizer_instances": (
        {"world_size": 2, "use_distributed_optimizer": True},
        2,
    ),
    "bf16": ({}, True),
    "fp16": ({}, True),
    "accumulate_allreduce_grads_in_fp32": ({}, True),
    "grad_reduce_in_bf16": ({"bf16": True}, True),
    "attention_backend": ({}, "local"),
    "bias_gelu_fusion": ({}, False),
    "bias_swiglu_fusion": ({"swiglu": True}, False),
    "bias_dropout_fusion": ({}, False),
    "cross_entropy_loss_fusion": ({}, True),
    "attention_softmax_in_fp32": ({}, True),
    "overlap_grad_reduce": ({}, True),
    "overlap_param_gather": (
        {"overlap_grad_reduce": True, "use_distributed_optimizer": True},
        True,
    ),
    "overlap_p2p_communication": (
        {
            "world_size": 4,
            "pipeline_model_parallel_size": 4,
            "virtual_pipeline_model_parallel_size": 2,
            "num_layers": 8,
        },
        False,
    ),
    "ddp_bucket_size": ({"overlap_grad_reduce": True}, 1000),
    "ddp_average_in_collective": ({}, True),
    "moe_token_dispatcher_type": (EXPERTS, "alltoall"),
    "moe_router_load_balancing_type": (EXPERTS, "none"),
    "moe_aux_loss_coeff": (EXPERTS, 0.01),
    "moe_expert_capacity_factor": (EXPERTS, 1.0),
    "moe_pad_expert_input_to_capacity": (EXPERTS | {"moe_expert_capacity_factor": 1.0}, True),
    "moe_shared_expert_overlap": (
        EXPERTS
        | {
            "moe_shared_expert_intermediate_size": 64,
            "moe_token_dispatcher_type": "alltoall",
        },
        True,
    ),
    "overlap_moe_expert_parallel_comm": (
        EP2 | {"moe_token_dispatcher_type": "alltoall", "bf16": True},
        True,
    ),
    "attention_dropout": ({}, 0.0),
    "hidden_dropout": ({}, 0.0),
    "init_method_std": ({}, 0.01),
    "optimizer": ({}, "sgd"),
    "use_distributed_optimizer": ({}, True),
    "lr": ({}, 1e-4),
    "weight_decay": ({}, 0.1),
    "clip_grad": ({}, 0.5),
    "adam_beta1": ({}, 0.8),
    "adam_beta2": ({}, 0.95),
    "adam_eps": ({}, 1e-6),
    "seed": ({}, 4321),
}

# Setting → (what else the job states, a value that asks for something): `run` must refuse it.
REFUSED = {
    "window_size": ({}, 16),
    "window_attn_skip_freq": ({}, 2),
    "attention_chunk_size": ({}, 16),
    "post_layer_norms": ({}, True),
    "moe_latent_size": (EXPERTS, 32),
    "multi_latent_attention": ({}, True),
    "q_lora_rank": ({}, 16),
    "kv_lora_rank": ({}, 16),
    "qk_head_dim": ({}, 16),
    "qk_pos_emb_head_dim": ({}, 16),
    "v_head_dim": ({}, 16),
    "mtp_num_layers": ({}, 1),
    "hybrid_override_pattern": ({}, "M*M*"),
    "mamba_state_dim": ({}, 16),
    "mamba_head_dim": ({}, 16),
    "mamba_num_groups": ({}, 2),
    "mamba_num_heads": ({}, 2),
    "rampup_batch_size": ({}, [2, 2, 100]),
    "context_parallel_size": ({"world_size": 2}, 2),
    "cp_comm_type": ({}, "a2a"),
    "fp8": ({"bf16": True}, "hybrid"),
    "fp8_recipe": ({}, "tensorwise"),
    "fp8_param_gather": ({"use_distributed_optimizer": True}, True),
    "fp4": ({"bf16": True}, "e2m1"),
    "transformer_impl": ({}, "transformer_engine"),
    "masked_softmax_fusion": ({}, True),
    "apply_rope_fusion": ({}, True),
    "cross_entropy_fusion_impl": ({"cross_entropy_loss_fusion": True}, "te"),
    "gradient_accumulation_fusion": ({}, True),
    "cuda_graph_impl": ({}, "local"),
    "tp_comm_overlap": (TP2 | {"sequence_parallel": True}, True),
    "moe_grouped_gemm": (EXPERTS | {"bf16": True}, True),
    "moe_permute_fusion": (EXPERTS, True),
    "delay_wgrad_compute": ({}, True),
    "use_precision_aware_optimizer": ({}, True),
    "main_grads_dtype": ({}, "bf16"),
    "main_params_dtype": ({}, "fp16"),
    "exp_avg_dtype": ({}, "bf16"),
    "exp_avg_sq_dtype": ({}, "bf16"),
    "optimizer_cpu_offload": ({}, True),
    "optimizer_offload_fraction": ({}, 0.5),
}

ON_WITHOUT_EFFECT = {
    "moe_layer_freq": 2,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 96,
    "moe_shared_expert_intermediate_size": 64,
    "expert_tensor_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "sinkhorn",
    "moe_aux_loss_coeff": 0.01,
    "moe_expert_capacity_factor": 1.0,
    "moe_pad_expert_input_to_capacity": True,
    "moe_router_dtype": "fp32",
    "moe_shared_expert_overlap": True,
    "overlap_moe_expert_parallel_comm": True,
    "microbatch_group_size_per_vp_stage": 4,
    "recompute_num_layers": 2,
    "recompute_modules": "mlp",
    "distribute_saved_activations": True,
    "ddp_bucket_size": 1000,
    "grad_reduce_in_bf16": True,
    "exp_avg_dtype": "bf16",
    "optimizer_offload_fraction": 0.5,
    "fp8_recipe": "tensorwise",
    "cp_comm_type": "a2a",
    "rotary_base": 500000.0,
    "rotary_percent": 0.5,
}


def prepared(values):
    """The job that would run on this many processes."""
    job = job_from_settings(values, source="job.yaml")
    return prepare_run(job, process_count=job.layout.world_size, parts=PARTS).job


def given_to_the_engine(job, monkeypatch):
    """Everything that the engine takes from a job, in comparable form."""
    seen = {}
    monkeypatch.setattr(
        parallel_state, "initialize_model_parallel", lambda **given: seen.update(given)
    )
    monkeypatch.setattr(groups, "rank_coordinates", lambda: None)
    groups.initialize_groups(job)
    source = open_source(RANDOM, job)
    batches = micro_batches(source, job.layout, seed=job.recipe.seed, step=1, dp_rank=0)
    return {
        "groups": seen,
        "data": [(batch.tokens.shape, batch.tokens.tolist()) for batch in batches],
        "model": model.model_arguments(job),
        "transformer": _fields(config.transformer_config(job)),
        "ddp": _fields(config.ddp_config(job)),
        "optimizer": _fields(config.optimizer_config(job)),
    }


def _fields(configuration):
    values = {
        field.name: getattr(configuration, field.name)
        for field in dataclasses.fields(configuration)
    }
    # Core makes new closures for its initialisers; their deviation is a field of its own.
    return {
        name: getattr(value, "__qualname__", value) if callable(value) else value
        for name, value in values.items()
        if not name.endswith("init_method")
    }


def test_every_setting_is_accounted_for():
    assert set(READ) | set(REFUSED) | set(HARMLESS) == set(settings())
    assert not set(READ) & set(REFUSED)


@pytest.mark.parametrize("name", READ)
def test_what_the_engine_reads_changes_what_it_does(name, monkeypatch):
    others, value = READ[name]
    without, with_it = prepared(BASE | others), prepared(BASE | others | {name: value})
    assert given_to_the_engine(with_it, monkeypatch) != given_to_the_engine(without, monkeypatch)


@pytest.mark.parametrize("name", READ)
def test_a_worker_rebuilds_the_job_that_the_launcher_resolved(name):
    others, value = READ[name]
    job = prepared(BASE | others | {name: value})
    through_json = json.loads(json.dumps(job.settings()))
    assert job_from_settings(through_json).settings() == job.settings()


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_run_cannot_honour_is_refused_by_name(name):
    others, value = REFUSED[name]
    prepared(BASE | others)  # the rest of the job runs
    with pytest.raises((InputError, MissingPartError), match=name):
        prepared(BASE | others | {name: value})


@pytest.mark.parametrize("name", ON_WITHOUT_EFFECT)
def test_a_setting_without_its_condition_is_refused_with_the_condition(name):
    base = BASE | ({"position_embedding_type": "none"} if name.startswith("rotary") else {})
    needs = next(conditional.needs for conditional in CONDITIONAL if name in conditional.names)
    with pytest.raises(InputError) as raised:
        prepared(base | {name: ON_WITHOUT_EFFECT[name]})
    assert f"states {name}" in str(raised.value)
    assert f"no effect without {needs}" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("position_embedding_type", "yarn"),
        ("position_embedding_type", "relative"),
        ("normalization", "L2Norm"),
        ("softmax_type", "learnable"),
        ("optimizer", "muon"),
        ("attention_backend", "flash"),
    ],
)
def test_a_choice_that_the_engine_lacks_is_refused(name, value):
    with pytest.raises(InputError, match=f"states {name} {value}"):
        prepared(BASE | {name: value})


def test_a_setting_at_megatrons_default_is_no_request():
    # An argument dump states every option; those at their default ask for nothing.
    prepared(BASE | {"moe_router_topk": 2, "cuda_graph_impl": "none", "kv_lora_rank": 32})
