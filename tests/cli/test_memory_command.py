"""`steptally memory`: the account, one rank of it, and refusals, as a user sees them."""

import json

import pytest
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError

GPT3 = (
    "gpt3-175b",
    *("--set", "tensor_model_parallel_size=8", "--set", "pipeline_model_parallel_size=8"),
    *("--set", "world_size=64", "--set", "global_batch_size=16", "--set", "bf16=true"),
)


def memory(*words):
    return CliRunner().invoke(app, ["memory", *map(str, words)])


def tally(*words):
    result = memory(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*words):
    result = memory(*words)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def test_json_has_the_peak_and_whether_it_fits():
    found = tally(*GPT3, "--device", "a100-sxm-80")
    rows = found["accounts"]["memory"]
    assert {row["lifetime"] for row in rows} == {
        "resident",
        "iteration",
        "microbatch",
        "transient",
        "outside",
    }
    assert found["summary"]["peak_memory_bytes_max"] == max(row["peak_bytes"] for row in rows)
    assert found["summary"]["fits"] is False
    assert [row["in_flight"] for row in found["accounts"]["memory_peaks"]] == [
        [count] for count in range(8, 0, -1)
    ]
    assert any(change["fits"] for change in found["accounts"]["memory_changes"])


def test_one_rank_can_be_asked_for():
    found = tally(*GPT3, "--rank", 63)
    assert {(row["rank"], row["pp"]) for row in found["accounts"]["memory"]} == {(63, 7)}
    assert {row["rank"] for row in found["accounts"]["memory_timeline"]} == {63}


def test_the_table_shows_stages_lifetimes_and_what_would_help():
    printed = memory(*GPT3, "--device", "a100-sxm-80").output
    for words in ("stage 7, rank 56", "microbatch", "later step", "Single changes that would help"):
        assert words in printed


def test_a_job_without_a_device_says_how_to_name_one():
    assert "--device NAME" in memory(*GPT3).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rank", 64), "64 ranks"),
        (("--device", "h1000"), "h1000"),
        (("--set", "use_megatron_fsdp=true"), "use_megatron_fsdp"),
    ],
)
def test_what_cannot_be_used_is_one_clear_sentence(words, said):
    assert said in refusal(*GPT3, *words)
