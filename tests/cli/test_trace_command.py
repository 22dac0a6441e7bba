"""`steptally trace`, as a user types it."""

import gzip
import json

import polars as pl
import pytest
from typer.testing import CliRunner

from device_traces import copy, kernel, nccl, step, write_trace
from steptally.cli.main import app
from steptally.errors import InputError
from steptally.tally import tally_from_json

TENSOR = ("3", "TENSOR_MODEL_PARALLEL_GROUP")
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
JOB = ["--job", "llama-3-8b", "--set", "world_size=4", "--set", "tensor_model_parallel_size=2"]


def run(*arguments):
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def traced(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments):
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    assert result.exception.exit_status == 2
    return str(result.exception)


def write_rank(folder, rank, *, group=TENSOR, ranks=(0, 1), world_size=4):
    """Two steps: a GEMM, its all-reduce, a copy; exposed 10 µs in each."""
    rounds = [
        [
            step(number, at, at + 100),
            kernel(GEMM, at + 10, at + 40, launched=at + 5),
            nccl(at + 30, at + 50, launched=at + 6, group=group, ranks=ranks),
            copy(at + 60, at + 70, launched=at + 8),
        ]
        for number, at in ((1, 0), (2, 100))
    ]
    events = [part for one in rounds for part in one]
    about = {"distributedInfo": {"rank": rank, "world_size": world_size}}
    return write_trace(folder / f"rank{rank}.json", *events, **about)


@pytest.fixture
def folder(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path, rank)
    return tmp_path


def test_json_has_the_usual_keys_and_the_ranks(folder):
    tally = traced(folder)
    assert (tally["schema"], tally["basis"]) == ("steptally/1", "measured")
    assert [one["rank"] for one in tally["ranks"]] == [0, 1]
    first = tally["ranks"][0]
    # span 10–170, compute 2 · 30, communication 2 · 20, of which 2 · 10 hidden, copies 2 · 10.
    expected = {
        "span_ns": 160_000,
        "compute_ns": 60_000,
        "communication_ns": 40_000,
        "overlap_ns": 20_000,
        "exposed_ns": 20_000,
        "copies_ns": 20_000,
        "busy_ns": 100_000,
        "idle_ns": 60_000,
        "hidden_share": 0.5,
    }
    assert {key: first[key] for key in expected} == expected
    (group,) = first["groups"]
    assert (group["group"], group["axis"], group["exposed_ns"]) == (TENSOR[1], "tp", 20_000)
    assert [(one["step"], one["exposed_ns"]) for one in first["steps"]] == [
        (1, 10_000),
        (2, 10_000),
    ]
    assert first["gaps"]["idle_ns"] == 60_000


def test_the_terminal_shows_every_account(folder):
    output = run(folder).output
    for heading in (
        *("Where each rank's step went", "Recordings", "Steps", "Communication by process group"),
        *("Idle time by what the device waited for", "Kernels by family", "Kernels", "Trust"),
    ):
        assert f"\n{heading}\n" in output
    assert "2 of 4 ranks are read" in output


def test_chosen_steps_only(folder):
    tally = traced(folder, "--steps", "2")
    assert {one["exposed_ns"] for one in tally["ranks"]} == {10_000}
    assert {row["step"] for row in tally["accounts"]["time"]} == {2}
    # Nothing of the other step is taken for lost or without a launch.
    assert {row["verdict"] for row in tally["ranks"][0]["trust"]} == {"good"}


def test_steps_that_no_trace_has_are_refused(folder):
    assert "asks for step 7" in refused(folder, "--steps", "7")


def test_processes_make_the_same_account(folder):
    assert traced(folder, "--processes", "2") == traced(folder, "--processes", "1")


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_measured(folder):
    (folder / "rank2.json").write_text("no JSON at all")
    tally = traced(*(folder / f"rank{rank}.json" for rank in range(3)))
    assert [one["rank"] for one in tally["ranks"]] == [0, 1]
    assert "rank2.json" in tally["warnings"][0]
    assert "rank2.json" in refused(folder / "rank2.json")


def test_one_rank_twice_is_refused(folder):
    (folder / "copy").mkdir()
    write_rank(folder / "copy", 1)
    assert "rank1.json all say that they are of rank 1" in refused(folder)


def test_nothing_there_is_refused(tmp_path):
    assert "no trace" in refused(tmp_path)
    assert "absent.json cannot be read" in refused(tmp_path / "absent.json")


@pytest.mark.parametrize("text", ["last", "5-3", "-1", "1,2", "1-"])
def test_steps_must_be_one_or_a_range(folder, text):
    assert "--steps" in refused(folder, f"--steps={text}")


def test_a_job_names_groups_that_only_have_numbers(tmp_path):
    write_rank(tmp_path, 0, group=("1", "undefined"), ranks=(0, 2))
    (one,) = traced(tmp_path, *JOB)["ranks"]
    (group,) = one["groups"]
    assert (group["group"], group["axis"]) == ("DATA_PARALLEL_GROUP", "dp")


def test_a_job_of_another_size_is_refused(tmp_path):
    write_rank(tmp_path, 0, world_size=1024)
    told = refused(tmp_path, *JOB)
    assert "is of a job of 1,024 ranks, but llama-3-8b has 4" in told


def test_a_setting_without_a_job_is_refused(folder):
    assert "--set is given without --job" in refused(folder, "--set", "world_size=8")


def test_a_file_without_a_rank_takes_the_one_given(tmp_path):
    path = write_trace(tmp_path / "trace.json", kernel(GEMM, 0, 10))
    assert [one["rank"] for one in traced(path, "--rank", "12")["ranks"]] == [12]


def test_what_is_saved_can_be_read_again(folder, tmp_path):
    kept = tmp_path / "kept"
    tally = traced(folder, "--save", kept)
    saved = tally_from_json((kept / "tally.json").read_text())
    assert json.loads(saved.dumps()) == {key: tally[key] for key in tally if key != "ranks"}
    frame = pl.read_parquet(kept / "recording.parquet")
    assert frame["exposed_ns"].to_list() == [20_000, 20_000]
    assert pl.read_parquet(kept / "kernels.parquet")["count"].sum() == 8
    again = traced(kept / "traces")["ranks"]
    assert [one["groups"] for one in again] == [one["groups"] for one in tally["ranks"]]
    assert [one["gaps"] for one in again] == [one["gaps"] for one in tally["ranks"]]


def test_communication_that_is_not_there_is_not_applicable(tmp_path):
    path = write_trace(tmp_path / "rank0.json", kernel(GEMM, 0, 10), kernel(GEMM, 20, 30))
    tally = traced(path)
    assert tally["ranks"][0]["hidden_share"] == "not applicable"
    assert tally["summary"]["hidden_communication_share"] == "not applicable"
    assert "NaN" not in run(path).output


def test_what_is_drawn_for_perfetto_can_be_read_again(folder, tmp_path):
    drawn = tmp_path / "drawn.json.gz"
    ranks = traced(folder, "--perfetto", drawn)["ranks"]
    text = gzip.decompress(drawn.read_bytes()).decode()
    assert "exposed communication" in text
    assert f"group {TENSOR[1]}" in text
    assert {event["pid"] for event in json.loads(text)["traceEvents"]} >= {0, 1}
    assert [one["exposed_ns"] for one in ranks] == [20_000, 20_000]
