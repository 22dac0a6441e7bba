"""`steptally count`: exact counts, measured speeds, and refusals, as a user sees them."""

import json

import pytest
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError

WORKED_EXAMPLE = """
num_layers: 4
hidden_size: 256
num_attention_heads: 8
num_query_groups: 4
ffn_hidden_size: 768
swiglu: true
seq_length: 128
vocab_size: 256
untie_embeddings_and_output_weights: true
global_batch_size: 16
tensor_model_parallel_size: 2
transformer_impl: local
"""


def count(*words):
    return CliRunner().invoke(app, ["count", *words])


def tally(*words):
    result = count(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*words):
    result = count(*words)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def test_a_job_file_gives_its_exact_integers(tmp_path):
    # docs/formulas/flops.md.
    path = tmp_path / "job.yaml"
    path.write_text(WORKED_EXAMPLE)
    summary = tally(str(path))["summary"]
    assert summary["flops_per_step_useful"] == 41083207680
    assert summary["flops_per_step_executed"] == 42681237504
    assert summary["tokens_per_step"] == 2048
    assert summary["flops_per_token_useful"] == 41083207680 // 2048


def test_integers_above_two_to_the_63_stay_exact():
    # A 405B step of 16.8 M tokens is 4.1e19 FLOPs.
    found = tally("llama-3.1-405b", "--set", "global_batch_size=2048", "--set", "world_size=2048")
    useful = found["summary"]["flops_per_step_useful"]
    assert isinstance(useful, int)
    assert useful > 2**63


def test_megatrons_convention_is_in_the_same_key():
    found = tally("llama-3-8b", "--convention", "megatron-lm")
    assert found["convention"] == "megatron-lm"
    # 6 · tokens · (weights of layers and head) + 6 · S² · q · L, by hand for Llama 3 8B at 8,192.
    weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    assert found["summary"]["flops_per_step_useful"] == 6 * 8192 * weights + 6 * 8192**2 * 4096 * 32


def test_approximations_stand_beside_the_exact_count():
    rows = {row["name"]: row for row in tally("llama-3-8b")["accounts"]["conventions"]}
    assert rows["6n"]["difference"] == pytest.approx(-0.064, abs=0.001)
    assert rows["megatron-lm"]["difference"] == pytest.approx(0, abs=1e-4)


def test_a_measured_step_time_gives_mfu_and_hfu():
    layout = "--set tensor_model_parallel_size=8 --set world_size=64 --set global_batch_size=64"
    words = [*layout.split(), "--set", "padded_vocab_size=51200", "--convention", "full-attention"]
    found = tally("gpt3-175b", *words, "--step-time", "13.75", "--device", "a100-sxm-80")
    assert found["summary"]["mfu"] == pytest.approx(0.514, abs=0.0005)
    assert "dense" in found["figures"]["mfu"]["origin"]
    assert 0 < found["summary"]["hfu"] < 1


def test_an_mfu_of_another_convention_is_converted_to_the_exact_count():
    words = ["--step-time", "1", "--device", "h100-sxm-80", "--convention", "full-attention"]
    summary = tally("llama-3-8b", *words)["summary"]
    # 12.5 % more FLOPs with full attention at 8,192 tokens (docs/conventions.md).
    assert summary["mfu"] / summary["mfu_exact_causal"] == pytest.approx(1.125, abs=0.001)


def test_layers_that_no_formula_counts_are_refused_by_name(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(WORKED_EXAMPLE + "experimental_attention_variant: gated_delta_net\n")
    assert any("experimental_attention_variant" in text for text in tally(str(path))["refusals"])


def test_without_a_device_mfu_is_refused_and_the_rates_are_given():
    found = tally("llama-3-8b", "--tokens-per-second", "9000")
    assert "mfu" not in found["summary"]
    assert "--device" in found["refusals"][0]
    assert found["summary"]["flops_per_s_per_device_useful"] > 0


def test_packed_documents_are_counted_by_their_squares():
    one = tally("llama-3-8b")["summary"]["flops_per_step_useful"]
    two = tally("llama-3-8b", "--packed-lengths", "4096,4096")["summary"]["flops_per_step_useful"]
    pairs = 8192 * 8193 // 2 - 2 * (4096 * 4097 // 2)
    assert one - two == 3 * 2 * (2 * pairs * 4096) * 32


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--tflops", "1420", "--device", "h100-sxm-80"), ("143.5%", "sparse peak", "b200")),
        (
            ("--tflops", "3000", "--device", "h100-sxm-80", "--set", "world_size=8"),
            ("whole cluster", "over 8 devices"),
        ),
        (("--tflops", "1000000", "--device", "v100-sxm2-32"), ("GFLOP/s",)),
    ],
)
def test_more_than_the_peak_is_refused_with_likely_causes(words, expected):
    message = refusal("llama-3-8b", *words, "--peak-dtype", "fp16")
    for words_of_cause in expected:
        assert words_of_cause in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--step-time", "1", "--tflops", "2"), "give one of them"),
        (("--step-time", "-1"), "above 0"),
        (("--mfu", "0.4"), "needs --peak-tflops"),
        (("--packed-lengths", "12,x"), "whole numbers"),
        (("--packed-lengths", "9000"), "at most seq_length"),
        (("--convention", "palms"), "did you mean 'palm'"),
        (("--step-time", "1", "--device", "h300"), "not in the catalogue"),
        (("--step-time", "1", "--device", "a100-sxm-80", "--peak-dtype", "fp8"), "no published"),
    ],
)
def test_contradictory_input_is_one_sentence(words, expected):
    assert expected in refusal("llama-3-8b", *words)


def test_the_table_is_readable():
    result = count("llama-3-8b", "--tflops", "400", "--device", "h100-sxm-80")
    assert result.exit_code == 0
    for words in ("MFU", "40.4 %", "FLOPs by term", "linear_qkv", "As others count it"):
        assert words in result.output
