"""A config.json of each family becomes the settings of the model that the catalogue holds exactly.

The files are shortened to the keys that matter; values are those of the public repositories.
"""

import json

import pytest
from tests.parameter_count import count_parameters

from steptally.errors import InputError
from steptally.job import read_job
from steptally.job.catalog.models import models

LLAMA_3_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "attention_bias": False,
    "bos_token_id": 128000, "transformers_version": "4.40.0", "use_cache": True,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "max_position_embeddings": 163840,
    "n_group": 8, "topk_group": 4, "scoring_func": "sigmoid", "torch_dtype": "bfloat16",
}  # fmt: skip
CONFIGS = {
    "llama-3-8b": LLAMA_3_8B,
    "llama-3.2-1b": {
        **LLAMA_3_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "head_dim": 64, "tie_word_embeddings": True,
    },
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32000, "sliding_window": 4096, "max_position_embeddings": 32768,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": None, "max_position_embeddings": 32768, "router_aux_loss_coef": 0.02,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "vocab_size": 152064, "use_sliding_window": False, "sliding_window": 131072,
        "max_window_layers": 28, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
    "qwen2-57b-a14b": {
        "model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "vocab_size": 151936, "num_experts": 64, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 131072,
    },
    "qwen3-8b": {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "decoder_sparse_step": 1, "max_position_embeddings": 40960,
    },
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2-lite": {
        **DEEPSEEK_V3, "model_type": "deepseek_v2", "hidden_size": 2048, "q_lora_rank": None,
        "intermediate_size": 10944, "num_hidden_layers": 27, "num_attention_heads": 16,
        "vocab_size": 102400, "n_routed_experts": 64, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": None,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4,
        "sliding_window": 128, "attention_bias": True, "max_position_embeddings": 131072,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
    "gemma-2-9b": {
        "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
        "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
    },
    "gemma-3-27b": {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
            "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
            "head_dim": 128, "vocab_size": 262208, "sliding_window": 1024,
            "max_position_embeddings": 131072,
        },
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576,
        "num_hidden_layers": 44, "num_attention_heads": 64, "vocab_size": 50432,
        "rotary_pct": 0.25, "hidden_act": "gelu_fast", "max_position_embeddings": 2048,
    },
    "phi-3-mini": {
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32064, "sliding_window": 2047, "max_position_embeddings": 4096,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504,
        "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 8,
        "attention_head_dim": 128, "vocab_size": 131072, "ssm_state_size": 128, "n_groups": 8,
        "mamba_head_dim": 64, "mamba_num_heads": 128, "max_position_embeddings": 8192,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    },
    "glm-4.5": {
        "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288,
        "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151552, "attention_bias": True, "use_qk_norm": True,
        "partial_rotary_factor": 0.5, "n_routed_experts": 160, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1, "max_position_embeddings": 131072,
    },
    "bloom-176b": {
        "model_type": "bloom", "n_embed": 14336, "hidden_size": 14336, "n_layer": 70,
        "num_attention_heads": 112, "vocab_size": 250880, "seq_length": 2048,
    },
    "nemotron-4-15b": {
        "model_type": "nemotron", "hidden_size": 6144, "intermediate_size": 24576,
        "num_hidden_layers": 32, "num_attention_heads": 48, "num_key_value_heads": 8,
        "vocab_size": 256000, "hidden_act": "relu2", "max_position_embeddings": 4096,
    },
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    """Read an object as a model's config.json, in a folder of the model's name."""

    def reader(config, *overrides, folder="model"):
        path = tmp_path / folder / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        named = any(text.startswith("seq_length=") for text in overrides)
        return read_job(str(path), [*overrides] if named else ["seq_length=2048", *overrides])

    return reader


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_as_many_parameters_as_the_catalogues_model(read, name):
    job = read(CONFIGS[name], "make_vocab_size_divisible_by=64")
    published = read_job(name, ["make_vocab_size_divisible_by=64"])
    assert count_parameters(job) == count_parameters(published)
    assert job.architecture.mtp_num_layers == published.architecture.mtp_num_layers
    if name in models() and isinstance(models()[name].parameters, int) and name != "bloom-176b":
        assert count_parameters(job) == models()[name].parameters


def test_gpt2_has_learned_positions_and_tied_embeddings(read):
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_ctx": 1024, "n_positions": 1024}
    config = {"model_type": "gpt2", **sizes, "vocab_size": 50257, "activation_function": "gelu_new"}
    job = read(config, "seq_length=1024", "make_vocab_size_divisible_by=1")
    assert count_parameters(job) == 124_439_808  # openai-community/gpt2
    assert job.recipe.bf16
    assert "no precision" in job.assumed["bf16"]


def test_the_sequence_is_the_longest_position_and_listed_as_assumed(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_3_8B))
    job = read_job(str(path))
    assert job.layout.seq_length == 8192
    assert "max_position_embeddings" in job.assumed["seq_length"]
    assert "seq_length" not in read_job(str(path), ["seq_length=4096"]).assumed


def test_a_folder_stands_for_the_config_in_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    assert read_job(str(tmp_path)).architecture.hidden_size == 4096


@pytest.mark.parametrize(
    ("name", "window", "local"),
    [
        ("mistral-7b", 4096, None),
        ("mixtral-8x7b", None, None),
        ("qwen2.5-7b", None, None),
        ("gpt-oss-120b", 128, (1, 0) * 18),
        ("gemma-2-9b", 4096, 2),
        ("gemma-3-27b", 1024, 6),
    ],
)
def test_windows_and_the_layers_that_have_them(read, name, window, local):
    architecture = read(CONFIGS[name]).architecture
    assert architecture.window_size == window
    assert architecture.window_attn_skip_freq == local


def test_qwens_window_from_a_layer_on(read):
    config = {**CONFIGS["qwen2.5-7b"], "use_sliding_window": True, "max_window_layers": 21}
    assert read(config).architecture.window_attn_skip_freq == (0,) * 21 + (1,) * 7


def test_sparse_steps_and_dense_layers(read):
    config = {**CONFIGS["qwen3-30b-a3b"], "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert read(config).architecture.moe_layer_freq == (0, 0, 0, *[1, 0] * 22, 1)


def test_only_the_language_model_is_read_and_says_so(read):
    assert "only the language model" in read(CONFIGS["gemma-3-27b"]).notes[0]


def test_keys_that_nobody_knows_are_kept(read):
    job = read({**LLAMA_3_8B, "mixture_of_depths": 3})
    assert job.unknown == {"mixture_of_depths": 3}
    assert "bos_token_id" in job.ignored


def test_a_config_in_a_folder_named_like_another_model_is_told_so(read):
    config = {**LLAMA_3_8B, "num_key_value_heads": 32}
    assert "num_query_groups 32 instead of 8" in read(config, folder="Llama-3-8B").notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "qwen3_next"}, "model_type 'qwen3_next'"),
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_hidden_layers": -1}, "num_layers is -1"),
        ({"layer_types": ["linear_attention"]}, "layer_types holds 'linear_attention'"),
        ({"num_key_value_heads": 5}, "num_query_groups 5"),
    ],
)
def test_an_unknown_family_or_value_is_refused(read, change, words):
    with pytest.raises(InputError) as raised:
        read({**LLAMA_3_8B, **change})
    assert words in str(raised.value)
