"""`steptally rehearse`: what it prints, writes and refuses."""

import json

import polars as pl
import pytest
from tests.rehearsals import needs_engine
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError, SteptallyError
from steptally.trace.schema import EVENTS

JOB = """\
num_layers: 4
hidden_size: 64
num_attention_heads: 4
seq_length: 32
vocab_size: 128
global_batch_size: 4
pipeline_model_parallel_size: 2
world_size: 4
bf16: true
transformer_impl: local
"""
EXPERTS = """\
num_experts: 4
moe_ffn_hidden_size: 64
add_bias_linear: false
moe_token_dispatcher_type: alltoall
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


@pytest.fixture
def experts(tmp_path):
    path = tmp_path / "experts.yaml"
    path.write_text(JOB + EXPERTS)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["rehearse", *arguments], catch_exceptions=True)


def tally(*arguments):
    needs_engine()
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def refusal(*arguments):
    error = run(*arguments).exception
    assert isinstance(error, InputError), error
    return str(error)


def test_all_stages_give_the_executed_flops_of_the_job(job):
    found = tally(job, "--stages", "--processes", "2")
    from steptally.job import read_job
    from steptally.predict.flops import flops_per_step

    assert found["basis"] == "rehearsed"
    executed = flops_per_step(read_job(job, [])).executed
    assert found["summary"]["flops_per_step_executed"] == executed
    assert [row["ranks"] for row in found["accounts"]["programs"]] == ["0–1", "2–3"]
    assert sum(row["executed"] for row in found["accounts"]["flops"]) == executed
    assert not found["refusals"]


def test_one_rank_says_that_it_is_one(job):
    found = tally(job, "--rank", "3")
    assert found["accounts"]["programs"][0]["rank"] == 3
    assert "flops_per_step_executed" not in found["summary"]
    assert "--stages" in found["refusals"][0]


def test_a_step_may_have_other_micro_batches(job):
    calls = [
        tally(job, "--microbatches", str(number))["accounts"]["programs"][0]["products"]
        for number in (1, 3)
    ]
    assert calls[1] == 3 * calls[0]


def test_tokens_per_expert_come_from_text_or_a_file(experts, tmp_path):
    listed = tmp_path / "tokens.txt"
    listed.write_text("3\n2\n2\n1\n")
    rows = {}
    for given in ("3,2,2,1", str(listed)):
        found = tally(experts, "--tokens-per-expert", given)
        rows[given] = {
            row["m"] for row in found["accounts"]["gemms"] if "local_experts" in row["name"]
        }
    assert rows["3,2,2,1"] == rows[str(listed)]
    assert {24, 16, 8} < rows["3,2,2,1"]  # of 64 copies of 32 tokens, doubled by nobody


def test_the_order_of_operations_is_saved_as_a_table(job, tmp_path):
    tally(job, "--save", str(tmp_path / "out"))
    table = pl.read_parquet(tmp_path / "out" / "ops-rank00000.parquet")
    assert list(table.columns[: len(EVENTS)]) == list(EVENTS)
    assert table["position"].to_list() == list(range(len(table)))
    assert table["start_ns"].null_count() == len(table)
    sends = table.filter(pl.col("collective_name") == "send")
    assert set(sends["group"]) == {"PIPELINE_MODEL_PARALLEL_GROUP"}
    assert json.loads((tmp_path / "out" / "tally.json").read_text())["basis"] == "rehearsed"


def test_what_is_printed_names_programs_and_substitutions(job):
    needs_engine()
    done = run(job, "--set", "transformer_impl=transformer_engine")
    assert done.exit_code == 0
    assert "rehearsed" in done.stdout
    assert "Substitutions" in done.stdout
    assert "stands for ranks" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rank", "4"], "rank is 4, but the job has 4 ranks"),
        (["--rank", "-1"], "rank is -1"),
        (["--rank", "0", "--stages"], "one rank, or one of every program"),
        (["--microbatches", "0"], "--microbatches is 0"),
        (["--processes", "0"], "--processes is 0"),
        (["--processes", "2"], "without --stages"),
        (["--tokens-per-expert", "1,2"], "has no experts"),
        (["--set", "hybrid_override_pattern=M-M*"], "Mamba"),
    ],
)
def test_bad_requests_are_one_sentence(job, arguments, says):
    needs_engine()
    assert says in refusal(job, *arguments)


@pytest.mark.parametrize("given", ["1,2", "a,b", "0,0,0,0", "-1,1,1,1", "nan,1,1,1", "9,1,1,1", ""])
def test_bad_histograms_are_one_sentence(experts, given):
    needs_engine()
    assert "tokens" in refusal(experts, "--tokens-per-expert", given)


@pytest.mark.parametrize("beyond", ["", "inside"])
def test_a_file_in_place_of_the_directory_is_refused_before_the_work(job, tmp_path, beyond):
    needs_engine()
    occupied = tmp_path / "taken"
    occupied.write_text("a file")
    assert "cannot be written" in refusal(job, "--save", str(occupied / beyond))
    assert occupied.read_text() == "a file"


def test_what_megatron_core_refuses_is_one_sentence_with_its_reason(job):
    needs_engine()
    # Tensor parallelism over experts without sequence parallelism raises in MoELayer.forward.
    said = refusal(
        job,
        *("--set", "num_experts=4", "--set", "add_bias_linear=false"),
        *("--set", "tensor_model_parallel_size=2"),
    )
    assert "sequence" in said


def test_a_missing_engine_is_named(job, monkeypatch):
    from steptally.engine import availability

    monkeypatch.setattr(availability.util, "find_spec", lambda name: None)
    error = run(job).exception
    assert isinstance(error, SteptallyError)
    assert "pip install" in str(error)
