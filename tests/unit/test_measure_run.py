"""A run directory is measured as far as it goes: what is missing is named, never filled in."""

import gzip
import json
import shutil

import pytest

from recordings import DATA, recorded_run
from steptally.errors import InputError
from steptally.measure.run import measure_run
from steptally.tally import tally_from_json
from steptally.trace.run_directory import RunDirectory

FLOPS = "flops_per_step_executed"


@pytest.fixture
def run(tmp_path):
    """A copy of a recorded run, to be damaged."""
    shutil.copytree(DATA / "tp2_dp2", tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def change_events(run, rank, change):
    path = run.trace(rank)
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["traceEvents"] = change(content["traceEvents"])
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


def refusal_of(tally, figure):
    assert figure not in tally.summary
    (refusal,) = [text for text in tally.refusals if text.startswith(figure)]
    return refusal


def test_a_whole_run_fills_every_account_it_can():
    tally = measure_run(recorded_run("tp2_dp2"))
    assert tally.basis == "measured"
    assert {name: len(rows) for name, rows in tally.accounts.items() if name != "gemms"} == {
        "time": 4,
        "traffic": 40,
        "memory": 4,
        "steps": 16,
    }
    assert {row.rank for row in tally.accounts["gemms"]} == {0, 1, 2, 3}
    assert sum(row.flops for row in tally.accounts["gemms"]) == tally.summary[FLOPS].value


def test_the_tally_survives_its_own_json():
    tally = measure_run(recorded_run("pp2"))
    again = tally_from_json(tally.dumps())
    assert again.dumps() == tally.dumps()
    assert again.accounts["time"] == tally.accounts["time"]


def test_shares_of_the_time_add_up_where_nothing_is_copied():
    summary = measure_run(recorded_run("tp2_dp2")).summary
    names = ("compute_share", "exposed_communication_share", "idle_share")
    assert sum(summary[name].value for name in names) == pytest.approx(1)


def test_a_rank_without_a_trace_is_named_and_no_sum_is_given(run):
    run.trace(2).unlink()
    tally = measure_run(run)
    assert "rank 2" in refusal_of(tally, FLOPS)
    assert any("rank 2 left no trace" in warning for warning in tally.warnings)
    assert {row.rank for row in tally.accounts["time"]} == {0, 1, 3}


def test_a_run_killed_before_its_traced_steps_still_has_its_step_time(run):
    shutil.rmtree(run.path / "traces")
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "status": "failed"}))
    tally = measure_run(run)
    assert "step_time_s" in tally.summary
    assert set(tally.accounts) == {"memory", "steps"}
    assert "'failed'" in tally.warnings[0]
    assert "no rank left a trace" in " ".join(tally.refusals)


def test_a_manifest_alone_is_enough_to_be_told_what_is_missing(run):
    shutil.rmtree(run.path / "traces")
    run.steps.unlink()
    tally = measure_run(run)
    assert tally.summary == {}
    assert tally.accounts == {}
    assert len(tally.refusals) >= 2


def test_a_damaged_trace_is_read_as_far_as_it_goes_and_gives_no_exact_sum(run):
    text = gzip.decompress(run.trace(1).read_bytes())
    run.trace(1).write_bytes(gzip.compress(text[: len(text) // 2]))
    tally = measure_run(run)
    assert "rank 1 is damaged" in refusal_of(tally, FLOPS)
    assert any("rank1.json.gz: lost" in warning for warning in tally.warnings)


def test_a_trace_that_is_none_is_named_and_the_others_are_measured(run):
    run.trace(0).write_bytes(b"not a trace")
    tally = measure_run(run)
    assert any("rank0.json.gz holds no traceEvents" in warning for warning in tally.warnings)
    assert {row.rank for row in tally.accounts["time"]} == {1, 2, 3}


def test_steps_that_run_different_products_are_told_with_every_number(run):
    def one_more_step(events):
        annotation = next(e for e in events if e["name"] == "ProfilerStep#3")
        after = max(e["ts"] + e.get("dur", 0) for e in events if e["ph"] == "X") + 1
        product = next(e for e in events if e["name"] == "aten::mm")
        return [
            *events,
            {**annotation, "name": "ProfilerStep#4", "ts": after, "dur": 10},
            {**product, "ts": after + 1, "dur": 5},
        ]

    for rank in range(4):
        change_events(run, rank, one_more_step)
    tally = measure_run(run)
    (warning,) = [text for text in tally.warnings if "executed FLOPs differ" in text]
    assert "3,538,944 in step 3" in warning
    assert "in step 4" in warning
    assert tally.summary[FLOPS].value == 3_538_944


def test_a_step_that_was_traced_and_is_in_no_trace_is_named(run):
    change_events(run, 1, lambda events: [e for e in events if e["name"] != "ProfilerStep#3"])
    warnings = measure_run(run).warnings
    assert any("step 3 of rank 1 was traced, but its trace does not" in text for text in warnings)


def test_products_hidden_inside_a_function_refuse_the_sum(run):
    def as_transformer_engine(events):
        step = next(e for e in events if e["name"] == "ProfilerStep#3")
        hidden = {
            **step,
            "cat": "cpu_op",
            "name": "_LayerNormLinear",
            "ts": step["ts"] + 1,
            "dur": 1,
        }
        return [*events, hidden]

    change_events(run, 3, as_transformer_engine)
    tally = measure_run(run)
    assert "rank 3" in refusal_of(tally, FLOPS)
    assert any("1 × _LayerNormLinear" in warning for warning in tally.warnings)


def test_without_communication_its_shares_do_not_apply(run):
    def without_communication(events):
        names = ("gloo:", "c10d::", "steptally::")
        return [event for event in events if not event["name"].startswith(names)]

    for rank in range(4):
        change_events(run, rank, without_communication)
    summary = measure_run(run).summary
    assert summary["hidden_communication_share"].value == "not applicable"
    assert summary["exposed_communication_share"].value == "not applicable"


def test_transfers_that_no_tag_explains_are_unattributed_with_their_time(run):
    change_events(
        run, 0, lambda events: [e for e in events if e["name"] != "steptally::collective"]
    )
    tally = measure_run(run)
    (warning,) = [text for text in tally.warnings if "can be told" in text]
    assert "names no process groups; record with steptally.Recorder" in warning
    row = next(row for row in tally.accounts["time"] if row.rank == 0)
    assert [group.group for group in row.groups] == ["unattributed"]


def test_a_trace_without_waits_says_what_that_does_to_compute(run):
    change_events(run, 0, lambda events: [e for e in events if e["name"] != "steptally::wait"])
    warnings = measure_run(run).warnings
    assert any("does not show waits" in warning for warning in warnings)


@pytest.mark.parametrize("world_size", [None, 0, "four", -1])
def test_a_manifest_without_a_number_of_ranks_is_refused(run, world_size):
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "world_size": world_size}))
    with pytest.raises(InputError, match="world_size"):
        measure_run(run)


def test_what_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a run directory"):
        measure_run(RunDirectory(tmp_path))


def test_groups_of_one_host_are_within_a_node_and_of_several_between_nodes(run):
    manifest = json.loads(run.manifest.read_text())
    for row in manifest["ranks"]:
        row["host"] = f"node{row['rank'] // 2}"  # tensor parallel pairs share a node
    run.manifest.write_text(json.dumps(manifest))
    scopes = {(row.group, row.scope) for row in measure_run(run).accounts["traffic"]}
    assert scopes == {
        ("TENSOR_MODEL_PARALLEL_GROUP", "intra-node"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "inter-node"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "inter-node"),
    }


@pytest.mark.parametrize(
    "damage",
    [
        {"ranks": "abc"},
        {"ranks": [None]},
        {"ranks": {"a": 1}},
        {"job": "x"},
        {"job": {"assumed": [1]}},
        {"settings": [1]},
        {"machine": "x"},
        {"status": [1]},
        {"world_size": True},
        {"world_size": 10**12},
    ],
)
def test_a_manifest_whose_entries_are_of_another_type_is_refused(run, damage):
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, **damage}))
    with pytest.raises(InputError, match="damaged"):
        measure_run(run)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": NaN}', "{"])
def test_a_manifest_that_is_no_json_is_refused(run, text):
    run.manifest.write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        measure_run(run)


LINE = '{"step": 9, "rank": 0, "duration_ns": 5, "loss": 1.0}'


@pytest.mark.parametrize(
    "line",
    [
        LINE[:-9],
        LINE.replace("1.0", "NaN"),
        LINE.replace("1.0", "1e999"),
        LINE.replace("5", "0"),
        LINE.replace("5", "-5"),
        LINE.replace('"rank": 0', '"rank": 99'),
        LINE.replace('"rank": 0', '"rank": -1'),
        "null",
        "[" * 100_000,
        "\udcff\udcfe",
    ],
)
def test_a_line_that_is_no_step_of_a_rank_is_left_out_and_counted(run, line):
    with run.steps.open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    tally = measure_run(run)
    assert "1 line of steps.jsonl is no step record: left out" in tally.warnings
    assert max(row.step for row in tally.accounts["steps"]) == 4
    tally_from_json(tally.dumps())


def test_steps_that_cannot_be_read_are_one_sentence(run):
    run.steps.unlink()
    run.steps.mkdir()
    with pytest.raises(InputError, match=r"steps\.jsonl cannot be read"):
        measure_run(run)


def test_shapes_that_damage_has_made_no_shapes_do_not_end_the_account(run):
    def spoilt(events):
        for event in events:
            if event["name"].startswith("gloo:"):
                event["args"]["Input Dims"] = [["x", -4], 3]
        return events

    change_events(run, 0, spoilt)
    assert {row.rank for row in measure_run(run).accounts["time"]} == {0, 1, 2, 3}
