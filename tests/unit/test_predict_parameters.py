"""Parameter counts against published model sizes and Megatron-Core's own."""

from steptally.job import job_from_settings
from steptally.predict import predict, predict_parameters

LLAMA_3_8B = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "seq_length": 8192,
    "vocab_size": 128256,
}


def total(settings):
    return sum(row.count for row in predict_parameters(job_from_settings(settings)))


def test_llama_3_8b_has_the_parameters_of_its_checkpoint():
    # 8,030,261,248: sum of the tensors of meta-llama/Meta-Llama-3-8B (Hugging Face shows 8.03 B).
    assert total(LLAMA_3_8B) == 8030261248


def test_gpt2_small_has_the_parameters_of_its_checkpoint():
    # 124,439,808: openai-community/gpt2, with its vocabulary of 50,257 unpadded and tied.
    gpt2 = {
        "num_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "seq_length": 1024,
        "max_position_embeddings": 1024,
        "vocab_size": 50257,
        "make_vocab_size_divisible_by": 1,
    }
    assert total(gpt2) == 124439808


def test_qk_layernorm_adds_two_gains_a_layer():
    more = total({**LLAMA_3_8B, "qk_layernorm": True}) - total(LLAMA_3_8B)
    assert more == 32 * 2 * 128


def test_the_summary_splits_embeddings_from_the_rest():
    summary = predict(job_from_settings(LLAMA_3_8B)).summary
    embedding = 2 * 128256 * 4096
    assert summary["parameters_embedding"].value == embedding
    assert summary["parameters_without_embedding"].value == 8030261248 - embedding
    assert summary["parameters_active"].value == 8030261248
