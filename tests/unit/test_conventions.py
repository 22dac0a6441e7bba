"""Conventions: each gives its source's own figures, and figures convert between them."""

from pathlib import Path

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings, read_job
from steptally.predict.conventions import ALL, CONVENTIONS, EXACT_CAUSAL, convert, find_convention
from steptally.predict.flops import predict_flops, useful_flops
from steptally.predict.parameters import model_size

GPT3 = [
    "tensor_model_parallel_size=8",
    "pipeline_model_parallel_size=8",
    "virtual_pipeline_model_parallel_size=3",
    "world_size=64",
    "global_batch_size=64",
    "padded_vocab_size=51200",
]


def gpt3(*more):
    return read_job("gpt3-175b", [*GPT3, *more])


def flops(job, name):
    return useful_flops(job, find_convention(name))


def test_gpt3_on_64_a100_has_the_papers_flops_and_mfu():
    # Korthikanti et al., table 5: 13.75 s, MFU 51.4 %; 1.411e17 FLOPs with full attention.
    counted = flops(gpt3(), "full-attention")
    assert counted == pytest.approx(1.411e17, rel=1e-3)
    assert counted / 13.75 / 64 / 312e12 == pytest.approx(0.514, abs=0.0005)


def test_korthikanti_equals_its_printed_formula():
    # 72BLsh²(1 + s/6h + v/12hL), equation 7.
    batch, layers, seq, hidden, vocabulary = 64, 96, 2048, 12288, 51200
    printed = 72 * batch * layers * seq * hidden**2
    printed *= 1 + seq / (6 * hidden) + vocabulary / (12 * hidden * layers)
    assert flops(gpt3(), "korthikanti") == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "mfu", "hfu"),
    [("megatron-22b", 0.415, 0.437), ("gpt3-175b", 0.514, 0.528), ("megatron-530b", 0.560, 0.570)],
)
def test_korthikantis_hardware_flops_reproduce_table_5(model, mfu, hfu):
    job = read_job(
        model,
        ["recompute_granularity=selective", "seq_length=2048", "padded_vocab_size=51200"],
    )
    ratio = flops(job, "korthikanti-hfu") / flops(job, "korthikanti")
    assert mfu * ratio == pytest.approx(hfu, abs=0.001)


def test_sc21_equals_its_printed_formula():
    # 96BLsh²(1 + s/6h + V/16Lh), equation 3.
    batch, layers, seq, hidden, vocabulary = 64, 96, 2048, 12288, 51200
    printed = 96 * batch * layers * seq * hidden**2
    printed *= 1 + seq / (6 * hidden) + vocabulary / (16 * layers * hidden)
    assert flops(gpt3(), "sc21") == pytest.approx(printed, rel=1e-12)


def test_palm_540b_reaches_its_printed_mfu():
    # Chowdhery et al., section 4.1: 238.3k tokens/s on 6,144 chips of 275 TFLOP/s, MFU 46.2 %.
    palm = {
        "num_layers": 118,
        "hidden_size": 18432,
        "ffn_hidden_size": 73728,
        "num_attention_heads": 48,
        "num_query_groups": 1,
        "kv_channels": 256,
        "vocab_size": 256000,
        "swiglu": True,
        "add_bias_linear": False,
        "position_embedding_type": "rope",
        "seq_length": 2048,
    }
    from steptally.job import job_from_settings

    job = job_from_settings(palm)
    assert model_size(job).total == pytest.approx(540.35e9, rel=1e-4)
    per_token = flops(job, "palm") / 2048
    assert 238.3e3 * per_token / 6144 / 275e12 == pytest.approx(0.462, abs=0.0005)


def test_megatrons_count_of_2024_is_the_full_square():
    dense = read_job("llama-3-8b")
    assert flops(dense, "megatron-2024") == flops(dense, "full-attention")


def test_megatron_lm_and_bridge_differ_in_windows_and_gates_only():
    dense = read_job("llama-3-8b")
    assert flops(dense, "megatron-lm") == flops(dense, "bridge")
    # GPT-OSS: quick-geglu is a gate that Megatron-LM counts as two matrices.
    gated = read_job("gpt-oss-120b")
    assert flops(gated, "megatron-lm") < 0.9 * flops(gated, "bridge")


def test_six_n_counts_what_it_says():
    job = read_job("mixtral-8x7b")
    size, tokens = model_size(job), job.layout.tokens_per_step
    assert flops(job, "6n") == 6 * size.active * tokens
    assert flops(job, "6n-all") == 6 * size.total * tokens
    assert flops(job, "6n-without-embedding") == 6 * (size.active - size.embedding) * tokens
    assert flops(job, "8n-without-embedding") == 8 * (size.active - size.embedding) * tokens


def test_a_published_mfu_is_converted():
    # 51.4 % with full attention is 50.7 % with the exact causal count: × 1.0136.
    converted = convert(0.514, find_convention("korthikanti"), EXACT_CAUSAL, gpt3())
    assert converted == pytest.approx(0.507, abs=0.0005)
    back = convert(converted, EXACT_CAUSAL, find_convention("korthikanti"), gpt3())
    assert back == pytest.approx(0.514, rel=1e-12)


@pytest.mark.parametrize("convention", ALL, ids=lambda convention: convention.name)
@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3", "nemotron-h-8b"])
def test_rows_add_to_the_useful_flops_of_every_convention(convention, model):
    job = read_job(model)
    rows = predict_flops(job, convention)
    assert sum(row.useful for row in rows) == useful_flops(job, convention)
    exact = predict_flops(job)
    assert sum(row.executed for row in rows) == sum(row.executed for row in exact)


def test_every_convention_names_its_source():
    assert all(convention.source and convention.summary for convention in CONVENTIONS.values())


def test_an_unknown_convention_is_refused_with_the_list():
    with pytest.raises(InputError, match=r"did you mean 'megatron-lm'.*one of exact-causal"):
        find_convention("megatron_lm")


def test_every_convention_stands_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text()
    assert all(f"| `{name}`" in text for name in CONVENTIONS)


def test_megatron_counts_packed_documents_by_their_squares_and_real_tokens():
    # num_floating_point_operations(args, batch, seqlen_squared_sum_in_batch=…,
    # total_real_tokens_in_batch=…): 6·h·(3h + h + 8h + v) a token, 6·h·L²/2 · 2 a document.
    job = job_from_settings(
        {
            "num_layers": 1,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "seq_length": 2048,
            "vocab_size": 1024,
            "make_vocab_size_divisible_by": 1,
            "global_batch_size": 8,
        }
    )
    documents = (512, 300, 1000)
    per_token = 6 * 512 * (4 * 512 + 8 * 512 + 1024)
    squares = sum(length**2 for length in documents)
    counted = useful_flops(job, find_convention("megatron-lm"), documents)
    assert counted == 8 * (sum(documents) * per_token + 6 * 512 * squares)
