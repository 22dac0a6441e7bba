"""`steptally stragglers`: what it takes, what it prints, and how it ends."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from pipelines import Pipeline, op_table
from steptally.cli.main import app
from steptally.errors import InputError

OPS = Path(__file__).parents[3] / "shared" / "traces" / "ops"
DLRM = Path(__file__).parents[3] / "shared" / "traces" / "kineto" / "dlrm_v100_8ranks"


def run(*arguments):
    return CliRunner().invoke(app, ["stragglers", *map(str, arguments)])


def slow_table(tmp_path, factor=2.0, name="ops.parquet"):
    def slow(step, dp, stage, microbatch):
        return factor if (dp, stage) == (1, 0) else 1.0

    path = tmp_path / name
    op_table(Pipeline(dp=3, pp=2, forward=slow, backward=slow)).write_parquet(path)
    return path


def test_the_json_has_the_keys_that_scripts_look_for(tmp_path):
    done = run(slow_table(tmp_path), "--json")
    assert done.exit_code == 0
    found = json.loads(done.output)
    assert {"slowdown", "verdicts", "collectives", "last_to_enter", "replay_error", "clock"} <= set(
        found
    )
    (verdict,) = found["verdicts"]
    assert (verdict["class"], verdict["coordinates"]) == ("slow-worker", {"pp": 0, "dp": 1})
    assert verdict["host"] is None
    assert verdict["evidence"]
    assert found["slowdown"] > 1.2


@pytest.mark.parametrize(("limit", "status"), [("5%", 1), ("60%", 0), ("0", 1)])
def test_fail_on_is_a_gate_on_what_mending_saves(tmp_path, limit, status):
    assert run(slow_table(tmp_path), "--fail-on", limit).exit_code == status


def test_a_clean_run_passes_the_gate(tmp_path):
    path = tmp_path / "ops.parquet"
    op_table(Pipeline(dp=3, pp=2)).write_parquet(path)
    done = run(path, "--fail-on", "0")
    assert done.exit_code == 0
    assert "No straggler found" in done.output


def test_steps_are_chosen(tmp_path):
    found = json.loads(run(slow_table(tmp_path), "--steps", "2-3", "--json").output)
    assert [row["step"] for row in found["accounts"]["replay"]] == [2, 3]


def test_one_job_may_be_split_over_files(tmp_path):
    table = pl.read_parquet(slow_table(tmp_path, name="whole.parquet"))
    folder = tmp_path / "parts"
    folder.mkdir()
    for (rank,), part in table.partition_by("rank", as_dict=True).items():
        part.write_parquet(folder / f"rank{rank}.parquet")
    whole, parts = (
        json.loads(run(path, "--json").output) for path in (tmp_path / "whole.parquet", folder)
    )
    assert parts["verdicts"] == whole["verdicts"]
    assert parts["slowdown"] == whole["slowdown"]


def test_the_page_and_the_tables_are_written(tmp_path):
    path = slow_table(tmp_path)
    done = run(path, "--html", tmp_path / "page.html", "--save", tmp_path / "kept")
    assert done.exit_code == 0
    assert "slow worker" in (tmp_path / "page.html").read_text(encoding="utf-8").lower()
    assert len(pl.read_parquet(tmp_path / "kept" / "peers.parquet")) > 0


def test_a_side_file_is_evidence_or_a_note(tmp_path):
    counters = tmp_path / "nic.csv"
    counters.write_text("host,device,counter,value\nnode1,mlx5_0,link_downed,3\n")
    found = json.loads(run(slow_table(tmp_path), "--beside", counters, "--json").output)
    told = "notable: mlx5_0 on node1: link_downed is 3 since boot or reset"
    assert any(told in warning and "(nic.csv)" in warning for warning in found["warnings"])


def test_a_side_file_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    assert "--beside gpu.csv: there is no such file" in refusal(
        tmp_path / "nothing", "--beside", "gpu.csv"
    )


def refusal(*arguments):
    done = run(*arguments)
    assert isinstance(done.exception, InputError)
    return str(done.exception)


def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path):
    path = slow_table(tmp_path)
    lacking = tmp_path / "lacking.parquet"
    pl.read_parquet(path).drop("stage").write_parquet(lacking)
    assert "no column stage" in refusal(lacking)
    log = tmp_path / "train.log"
    log.write_text("nothing of use\n")
    assert "holds no iteration lines" in refusal(log)
    assert "one kind at a time" in refusal(path, log)
    assert "--set is given without --job" in refusal(path, "--set", "world_size=4")
    assert "choose from these" in refusal(path, "--steps", "90-99")
    assert "no trace there" in refusal(tmp_path / "empty*")


def test_a_directory_of_tables_and_traces_is_refused(tmp_path):
    slow_table(tmp_path)
    trace = next((Path(__file__).parents[1] / "data" / "pp2" / "traces").glob("*.json.gz"))
    (tmp_path / trace.name).write_bytes(trace.read_bytes())
    assert "one kind at a time" in refusal(tmp_path)


def test_op_tables_may_be_a_pattern_or_lie_in_folders_below(tmp_path):
    (tmp_path / "below").mkdir()
    path = slow_table(tmp_path / "below")
    whole = json.loads(run(path, "--json").output)["verdicts"]
    for given in (tmp_path, tmp_path / "*" / "*.parquet"):
        assert json.loads(run(given, "--json").output)["verdicts"] == whole
    assert json.loads(run(path, path, "--json").output)["verdicts"] == whole


def test_a_job_of_fewer_ranks_than_the_table_is_refused(tmp_path):
    assert "the op table has 6 ranks" in refusal(slow_table(tmp_path), "--job", "llama3-8b")


def test_steps_of_a_log_cannot_be_chosen(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("nothing of use\n")
    assert "--steps is given" in refusal(log, "--steps", "1-2")


def test_times_beyond_all_measure_are_not_read(tmp_path):
    table = tmp_path / "phases.csv"
    rows = [f"{i},{rank},forward,1e308" for i in range(20) for rank in range(4)]
    table.write_text("\n".join(["iteration,rank,section,ms", *rows]) + "\n")
    assert "none of its 80 rows" in refusal(table)
    log = tmp_path / "train.log"
    line = (
        " iteration {:8}/ 300 | elapsed time per iteration (ms): 1e308 | global batch size: 8 |\n"
    )
    log.write_text("".join(line.format(n) for n in range(1, 51)))
    assert "holds no iteration lines" in refusal(log)


@pytest.mark.skipif(not DLRM.exists(), reason="../shared is not here")
def test_a_rank_whose_trace_was_cut_off_is_left_out_of_the_replay(tmp_path):
    for rank in range(3):
        content = (DLRM / f"rank{rank}.json.gz").read_bytes()
        kept = content if rank != 1 else content[: len(content) // 2]
        (tmp_path / f"rank{rank}.json.gz").write_bytes(kept)
    found = json.loads(run(tmp_path, "--json").output)
    assert any("ranks 1 are left out of the replay" in warning for warning in found["warnings"])
    assert {row["rank"] for row in found["accounts"]["peers"]} == {0, 2}


def test_the_iteration_times_of_a_log_name_a_pause(tmp_path):
    log = tmp_path / "train.log"
    lines = [
        f" [2026-11-30 03:00:00] iteration {n:8}/ 300 | consumed samples: {n * 8:12} | elapsed "
        f"time per iteration (ms): {600.0 if n % 25 == 0 else 200.0 + n % 3:.1f} | "
        "learning rate: 1.0E-04 | global batch size:     8 | lm loss: 5.0E+00 |"
        for n in range(1, 201)
    ]
    log.write_text("\n".join(lines) + "\n")
    found = json.loads(run(log, "--json").output)
    assert [verdict["class"] for verdict in found["verdicts"]] == ["pause"]
    assert found["slowdown"] is None


@pytest.mark.parametrize(
    "text",
    [
        "iteration,rank,section,ms\n" + "".join(f"{n},0,forward,10\n" for n in range(9)),
        "".join(
            f" iteration {n:8}/ 9 | elapsed time per iteration (ms): 20{n}.5 | "
            "global batch size:     8 |\n"
            for n in range(1, 3)
        ),
        "".join(
            f" iteration {n:8}/ 300 | elapsed time per iteration (ms): {200 + n % 3}.5 | "
            "global batch size:     8 |\n"
            for n in range(1, 201)
        ),
    ],
    ids=["one rank", "two iterations", "iterations of all ranks together"],
)
def test_what_holds_no_rank_against_another_is_not_identifiable(tmp_path, text):
    path = tmp_path / "record.txt"
    path.write_text(text)
    (verdict,) = json.loads(run(path, "--json").output)["verdicts"]
    assert verdict["class"] == "not-identifiable"
    assert "timers of all ranks" in verdict["evidence"][-1]


@pytest.mark.skipif(not DLRM.exists(), reason="../shared is not here")
def test_dlrm_last_to_enter_are_those_of_its_readme():
    found = json.loads(run(DLRM, "--json").output)
    # shared/traces/README.md: rank 7 in 5 of 8 collectives, rank 5 in 2, rank 4 in 1.
    counts = {rank: count for rank, count in found["last_to_enter"].items() if count}
    assert counts == {"7": 5, "5": 2, "4": 1}
    bounds = {row["rank"]: row["bound_ns"] for row in found["clock"]}
    waits = {row["rank"]: row["wait_ns"] for row in found["accounts"]["waits"]}
    raw_us = (5580, 11125, 3280, 9571, 6370, 6041, 3342, 1534)
    for rank, wait_us in enumerate(raw_us):
        # Eight waits, each between two times that may be off by their bounds.
        assert abs(waits[rank] - 1000 * wait_us) <= 8 * 2 * max(bounds.values())


@pytest.mark.skipif(not OPS.exists(), reason="../shared is not here")
@pytest.mark.parametrize(
    ("name", "verdict", "coordinates"),
    [
        ("AR", "slow-worker", {"dp": 0, "pp": 0}),
        ("ST", "stage-imbalance", {"pp": 3}),
    ],
)
def test_published_op_tables_are_judged_as_published(name, verdict, coordinates):
    found = json.loads(run(OPS / name, "--json").output)
    assert [(one["class"], one["coordinates"]) for one in found["verdicts"]] == [
        (verdict, coordinates)
    ]
    assert abs(found["replay_error"]) < 0.02


def test_one_rank_alone_is_not_identifiable():
    recorded = Path(__file__).parents[1] / "data" / "tp2_dp2" / "traces"
    found = json.loads(run(sorted(recorded.glob("*.json.gz"))[0], "--json").output)
    (verdict,) = found["verdicts"]
    assert verdict["class"] == "not-identifiable"
    assert "one rank alone is recorded" in verdict["evidence"][0]


def test_help_loads_nothing_heavy():
    assert run("--help").exit_code == 0


def test_fail_on_refuses_what_cannot_be_replayed(tmp_path):
    table = tmp_path / "phases.csv"
    rows = [f"{n},{rank},forward,{100 + 100 * (rank == 2)}" for n in range(8) for rank in range(4)]
    table.write_text("\n".join(["iteration,rank,section,ms", *rows]) + "\n")
    assert "--fail-on has nothing to judge" in refusal(table, "--fail-on", "5%")
    assert run(table, "--save", tmp_path / "kept").exit_code == 0


def test_two_searches_are_compared_line_by_line(tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(run(slow_table(tmp_path), "--json").output)
    after.write_text(run(slow_table(tmp_path, 1.0), "--json").output)
    done = CliRunner().invoke(app, ["compare", str(before), str(after), "--json"])
    assert done.exit_code == 0
    assert {"replay", "what_if", "peers"} <= set(json.loads(done.output)["accounts"])
