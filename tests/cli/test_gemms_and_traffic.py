"""`steptally gemms` and `steptally traffic`: tables, JSON, choices of a rank, refusals."""

import json

import pytest
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError

JOB = """
name: small
num_layers: 4
hidden_size: 256
num_attention_heads: 8
seq_length: 128
vocab_size: 256
bf16: true
sequence_parallel: true
tensor_model_parallel_size: 2
pipeline_model_parallel_size: 2
world_size: 8
global_batch_size: 8
untie_embeddings_and_output_weights: true
"""
BOTH = pytest.mark.parametrize("verb", ["gemms", "traffic"])


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def output(*arguments, columns="200"):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": columns}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_products_as_json_have_the_keys_of_the_schema(job):
    found = json.loads(output("gemms", job, "--device", "H100 SXM", "--json"))
    assert (found["schema"], found["basis"]) == ("steptally/1", "predicted")
    row = found["accounts"]["gemms"][0]
    assert {"name", "phase", "m", "n", "k", "batch", "calls", "flops", "bytes", "waves"} <= set(row)
    assert row["bound"] in ("compute", "memory", "launch")
    total = sum(row["flops"] for row in found["accounts"]["gemms"])
    assert found["summary"]["gemms_flops_per_step"] == total


def test_traffic_as_json_has_the_keys_of_the_schema(job):
    found = json.loads(output("traffic", job, "--json"))
    row = found["accounts"]["traffic"][0]
    assert {"group", "group_size", "collective", "phase", "calls_per_step"} <= set(row)
    assert row["bytes_per_step"] == row["calls_per_step"] * row["bytes_per_call"]
    groups = {group["group"]: group["ranks"] for group in found["accounts"]["groups"]}
    assert groups["TENSOR_MODEL_PARALLEL_GROUP"] == [0, 1]


def test_tables_show_what_the_rows_hold(job):
    text = output("gemms", job, "--device", "H100 SXM")
    assert "core_attention.qk" in text
    assert "n/tp" in text
    text = output("traffic", job)
    assert "DATA_PARALLEL_GROUP_WITH_CP, 2 ranks" in text
    assert "overlap_grad_reduce" in text


@BOTH
def test_tables_fit_a_narrow_terminal(job, verb):
    text = output(verb, job, columns="80")
    assert max(map(len, text.splitlines())) <= 80


@BOTH
def test_a_stage_means_its_first_rank(job, verb):
    stage = json.loads(output(verb, job, "--stage", "1", "--json"))
    rank = json.loads(output(verb, job, "--rank", "4", "--json"))
    assert stage["accounts"] == rank["accounts"]
    assert {row["rank"] for row in stage["accounts"][verb]} == {4}


@BOTH
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rank", "1", "--stage", "1"), "pass one of them"),
        (("--stage", "2"), "use 0 to 1"),
        (("--rank", "8"), "8"),
        (("--rank", "-1"), "-1"),
    ],
)
def test_a_rank_that_is_not_there_is_refused_in_one_sentence(job, verb, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        output(verb, job, *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--device", "no such card"), "no such card"),
        (("--device", "NVIDIA H100"), "PCIe|pcie"),
        (("--launch-us", "0"), "above 0"),
        (("--device", "H100 SXM", "--set", "fp8=e4m3", "--set", "fp8_recipe=mxfp8"), "mxfp8"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(job, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        output("gemms", job, *arguments)


def test_the_launch_threshold_is_the_users(job):
    def bounds(launch_us):
        found = output("gemms", job, "--device", "H100 SXM", "--launch-us", launch_us, "--json")
        return {row["bound"] for row in json.loads(found)["accounts"]["gemms"]}

    assert bounds("1000") == {"launch"}
    assert "launch" not in bounds("0.0001")
