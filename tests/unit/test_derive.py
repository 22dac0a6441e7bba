"""Megatron's derivations: expected values are what validate_args of megatron-core 0.19.2 makes."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.job.catalog.options import options
from steptally.job.coerce import settings
from steptally.job.derive import derive

SMALL = {
    "num_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "seq_length": 32,
    "vocab_size": 128,
}


def made(**stated):
    return job_from_settings({**SMALL, **stated})


def test_swiglus_default_width_is_two_thirds_of_4h_in_units_of_64():
    # int((4 · 4096 · 2 / 3) / 64) · 64
    assert made(hidden_size=4096, swiglu=True).architecture.ffn_hidden_size == 10880


def test_query_groups_count_only_with_the_switch():
    with_switch = made(group_query_attention=True, num_query_groups=2)
    without = made(group_query_attention=False, num_query_groups=2)
    assert with_switch.architecture.num_query_groups == 2
    assert without.architecture.num_query_groups == 8
    assert "num_query_groups 2 has no effect" in without.notes[0]


def test_the_switch_alone_means_one_query_group():
    assert made(group_query_attention=True).architecture.num_query_groups == 1


@pytest.mark.parametrize(
    ("stated", "virtual"),
    [
        ({"num_layers_per_virtual_pipeline_stage": 2}, 2),
        ({"num_virtual_stages_per_pipeline_rank": 4}, 4),
        ({"num_virtual_stages_per_pipeline_rank": 1}, None),
        ({"virtual_pipeline_model_parallel_size": 1}, None),
    ],
)
def test_virtual_stages_from_either_flag(stated, virtual):
    job = made(pipeline_model_parallel_size=2, **stated)
    assert job.layout.virtual_pipeline_model_parallel_size == virtual


def test_layers_per_virtual_stage_must_divide_a_stage():
    with pytest.raises(InputError, match="num_layers_per_virtual_pipeline_stage '3'"):
        made(pipeline_model_parallel_size=2, num_layers_per_virtual_pipeline_stage="3")


def test_sequence_parallelism_is_off_without_tensor_parallelism_and_says_so():
    job = made(sequence_parallel=True)
    assert not job.layout.sequence_parallel
    assert "sequence_parallel is off" in job.notes[0]


def test_bf16_accumulates_gradients_in_fp32_unless_told_otherwise():
    assert made(bf16=True).recipe.accumulate_allreduce_grads_in_fp32
    assert not made(bf16=True, grad_reduce_in_bf16=True).recipe.accumulate_allreduce_grads_in_fp32
    assert not made(bf16=True, main_grads_dtype="bf16").recipe.accumulate_allreduce_grads_in_fp32


@pytest.mark.parametrize(
    ("stated", "granularity", "method", "layers"),
    [
        ({"recompute_activations": True}, "selective", None, None),
        ({"checkpoint_activations": True, "checkpoint_num_layers": 2}, "full", "uniform", 2),
        ({"activations_checkpoint_method": "block"}, "full", "block", 1),
        ({"checkpoint_activations": False, "checkpoint_num_layers": 1}, None, None, None),
    ],
)
def test_older_recompute_switches(stated, granularity, method, layers):
    layout = made(**stated).layout
    assert layout.recompute_granularity == granularity
    assert layout.recompute_method == method
    assert layout.recompute_num_layers == layers


def test_a_window_left_right_is_left_plus_one_keys():
    # Transformer Engine: `left` keys before a query, and the query's own.
    assert made(window_size="127,0").architecture.window_size == 128
    assert made(window_size=(127, 0)).architecture.window_size == 128
    assert made(window_size="(-1, 0)").architecture.window_size is None
    assert made(window_size=128).architecture.window_size == 128


def test_the_newer_hybrid_pattern_sets_the_layers_mtp_and_virtual_stages():
    job = made(hybrid_layer_pattern="M*|M-|MM|--/MM/MM", pipeline_model_parallel_size=2)
    assert job.architecture.num_layers == 8
    assert job.architecture.hybrid_override_pattern == "M*M-MM--"
    assert job.architecture.mtp_num_layers == 2
    assert job.layout.virtual_pipeline_model_parallel_size == 2


@pytest.mark.parametrize(
    ("stated", "own"),
    [
        ({"num_moe_experts": 4}, {"num_experts": "4"}),
        ({"disable_bias_linear": True}, {"add_bias_linear": False}),
        ({"no_masked_softmax_fusion": True}, {"masked_softmax_fusion": False}),
        ({"use_flash_attn": True}, {"attention_backend": "flash"}),
        ({"attention_backend": "AttnBackend.fused"}, {"attention_backend": "fused"}),
        ({"fp8_format": "e4m3"}, {"fp8": "e4m3"}),
        ({"layernorm_epsilon": 1e-6}, {"norm_epsilon": 1e-6}),
        (
            {"share_embeddings_and_output_weights": False},
            {"untie_embeddings_and_output_weights": True},
        ),
        (
            {"gated_linear_unit": True, "activation_func": "torch.nn.functional.silu"},
            {"swiglu": True},
        ),
        ({"gated_linear_unit": True, "activation_func": "quick_gelu"}, {"quick_geglu": True}),
        ({"use_rotary_position_embeddings": True}, {"position_embedding_type": "rope"}),
        ({"cp_comm_type": ["a2a"]}, {"cp_comm_type": "a2a"}),
        ({"external_cuda_graph": True}, {"cuda_graph_impl": "transformer_engine"}),
        ({"params_dtype": "torch.bfloat16"}, {"bf16": True}),
        ({"exp_avg_dtype": "torch.bfloat16"}, {"exp_avg_dtype": "bf16"}),
        ({"num_experts": "[1]"}, {}),
        ({"moe_aux_loss_coeff": [0.01]}, {"moe_aux_loss_coeff": 0.01}),
        ({"mtp_num_layers": 0}, {}),
        ({"normalization": "rmsnorm"}, {"normalization": "RMSNorm"}),
        ({"glu_activation": "swiglu"}, {"swiglu": True}),
        (
            {"position_embedding_type": "PositionEmbeddingType.alibi"},
            {"position_embedding_type": "none"},
        ),
        (
            {"num_key_value_heads": 2, "group_query_attention": False},
            {"num_query_groups": 2},
        ),
    ],
)
def test_every_spelling_becomes_the_jobs_own(stated, own):
    found = derive(stated, [])
    found.pop("add_qkv_bias", None)  # follows add_bias_linear
    assert own.items() <= found.items()
    assert set(found) <= {*own, "add_bias_linear", "accumulate_allreduce_grads_in_fp32"}


def test_the_smallest_world_holds_experts_too():
    job = made(num_experts=8, expert_model_parallel_size=8, pipeline_model_parallel_size=2)
    assert job.layout.world_size == 16
    assert "smallest" in job.assumed["world_size"]


def test_the_world_of_a_dump_is_its_data_parallel_size_times_a_replica():
    job = made(data_parallel_size=4, tensor_model_parallel_size=2)
    assert job.layout.world_size == 8


def test_unmodelled_options_are_unknown_and_harmless_ones_ignored():
    job = made(use_megatron_fsdp=True, log_interval=10, frobnicate=1, nccl_ub=False)
    assert job.unknown == {"use_megatron_fsdp": True, "frobnicate": 1}
    assert job.ignored == {"log_interval": 10, "nccl_ub": False}  # False is Megatron's default


def test_a_mistyped_required_setting_is_guessed():
    stated = {**SMALL, "hiden_size": 64}
    del stated["hidden_size"]
    with pytest.raises(InputError, match="did you mean 'hidden_size'"):
        job_from_settings(stated)


def test_the_option_table_agrees_with_the_jobs_settings():
    assert len(options()) > 1000
    stated = {option.dest for option in options() if option.effect == "setting"}
    assert stated == {option.dest for option in options() if option.dest in settings()}
    actions = {option.action for option in options()}
    assert actions == {"value", "list", "true", "false", "either"}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"num_experts": 4, "moe_layer_freq": [0, 1]}, "moe_layer_freq has 2 entries"),
        ({"num_experts": 4, "moe_layer_freq": [2] * 8}, "each entry is 0 or 1"),
        ({"moe_layer_freq": 0}, "moe_layer_freq is 0"),
        ({"fp8": "hybrid", "fp4": "e2m1"}, "fp8 and fp4"),
        ({"max_position_embeddings": 16}, "seq_length 32 is more than"),
        ({"tensor_model_parallel_size": 2, "tp_comm_overlap": True}, "needs sequence_parallel"),
        ({"inter_node_bandwidth_bytes_per_s": -1.0}, "more than 0 bytes/s"),
        ({"gated_linear_unit": True, "activation_func": "tanh"}, "gates that an account knows"),
        ({"hidden_size": 10**17 + 1, "tensor_model_parallel_size": 3}, "num_attention_heads"),
    ],
)
def test_impossible_jobs_are_refused(stated, words):
    with pytest.raises(InputError, match=words):
        made(**stated)


def test_the_cluster_takes_its_node_from_the_device():
    cluster = made(device="NVIDIA GB200", world_size=8, global_batch_size=8).cluster
    assert cluster.device == "gb200"
    assert (cluster.devices_per_node, cluster.nodes, cluster.link_domain_size) == (4, 2, 72)
    # NVLink 5: 1.8 TB/s both directions together (GB200 NVL72 specification)
    assert cluster.intra_node_bandwidth_bytes_per_s == 900e9
    assert cluster.inter_node_bandwidth_bytes_per_s is None


def test_an_ambiguous_device_is_refused_in_a_job_too():
    with pytest.raises(InputError, match="ambiguous"):
        made(device="NVIDIA H100")
