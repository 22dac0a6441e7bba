"""The recorder in one process: what a step costs, what it leaves, and what it never touches."""

import gzip
import json
import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import steptally
from steptally.errors import InputError
from steptally.run import record, window
from steptally.run.record import Recorder
from steptally.run.schedule import choose_traced_steps
from steptally.run.window import joined_traces


def run_steps(recorder, count, body=lambda step: None):
    for _ in range(count):
        with recorder.step() as step:
            body(step)


def events(recorder):
    content = json.loads(gzip.decompress(recorder.directory.trace(0).read_bytes()))
    return [event for event in content["traceEvents"] if event.get("ph") == "X"]


def test_importing_steptally_imports_no_torch():
    code = "import steptally, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_recorder_is_found_at_the_top_of_the_package():
    assert steptally.Recorder is Recorder


def test_without_torch_the_recorder_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
import steptally
from steptally.errors import MissingPartError
try:
    steptally.Recorder()
except MissingPartError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "pip install 'steptally[engine]'" in done.stderr


def test_a_step_that_is_not_traced_reads_the_clock_twice_and_touches_nothing(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, traced_steps=())
    run_steps(recorder, 1)  # the first step also finds the directory and writes the manifest
    readings = []

    def perf_counter_ns():
        readings.append(time.perf_counter_ns())
        return readings[-1]

    # Nothing but this one function of `time` is there to be called.
    monkeypatch.setattr(record, "time", SimpleNamespace(perf_counter_ns=perf_counter_ns))
    before = (torch.distributed.Work.__dict__["wait"], sorted(tmp_path.rglob("*")))
    with recorder.step():
        assert (torch.distributed.Work.__dict__["wait"], sorted(tmp_path.rglob("*"))) == before
    assert len(readings) == 2


def test_every_step_leaves_a_line_with_its_own_wall_time(tmp_path):
    with Recorder(tmp_path, steps=4, warmup_steps=1, traced_steps=(3,), tokens_per_step=64) as it:
        run_steps(it, 4, lambda step: time.sleep(0.01))
    lines = list(it.directory.read_steps())
    assert [(line["step"], line["warmup"], line["traced"]) for line in lines] == [
        (1, True, False),
        (2, False, False),
        (3, False, True),
        (4, False, False),
    ]
    assert all(line["duration_ns"] >= 10_000_000 for line in lines)
    assert all(line["tokens"] == 64 and line["rank"] == 0 for line in lines)
    assert all(abs(line["start_unix_ns"] - time.time_ns()) < 60e9 for line in lines)
    assert all(line["peak_memory_bytes"] > 0 for line in lines)


def test_a_loss_that_is_a_tensor_is_copied_when_the_step_ends_and_read_later(tmp_path):
    buffer = torch.zeros((), requires_grad=False)
    with Recorder(tmp_path, traced_steps=()) as recorder:
        for value in (3.0, 2.0):
            with recorder.step() as step:
                buffer.fill_(value)  # loops under CUDA graphs write every loss to one place
                step.loss = buffer
                step.grad_norm = 0.5
    lines = list(recorder.directory.read_steps())
    assert [(line["loss"], line["grad_norm"]) for line in lines] == [(3.0, 0.5), (2.0, 0.5)]


def test_a_loss_that_is_not_a_number_is_told_apart_from_no_loss(tmp_path):
    with Recorder(tmp_path, traced_steps=()) as recorder:
        for loss in (math.nan, None):
            with recorder.step() as step:
                step.loss = loss
    spoilt, absent = recorder.directory.read_steps()
    assert (spoilt["loss"], spoilt["not_finite"]) == (None, ["loss"])
    assert absent["loss"] is None
    assert "not_finite" not in absent


def test_traced_steps_are_marked_and_those_around_them_are_not_in_the_trace(tmp_path):
    matrix = torch.ones(8, 8)
    with Recorder(tmp_path, traced_steps=(3, 4)) as recorder:
        run_steps(recorder, 6, lambda step: matrix @ matrix)
    found = events(recorder)
    marks = [event["name"] for event in found if event["name"].startswith("ProfilerStep#")]
    assert marks == ["ProfilerStep#3", "ProfilerStep#4"]
    assert sum(event["name"] == "aten::mm" for event in found) == 2


def test_windows_that_do_not_touch_end_up_in_one_trace_with_one_clock(tmp_path):
    with Recorder(tmp_path, traced_steps=(1, 3)) as recorder:
        run_steps(recorder, 3, lambda step: time.sleep(0.02))
    marks = [event for event in events(recorder) if event["name"].startswith("ProfilerStep#")]
    assert [mark["name"] for mark in marks] == ["ProfilerStep#1", "ProfilerStep#3"]
    assert marks[1]["ts"] - marks[0]["ts"] > 40_000  # microseconds: two sleeps lie between


def test_joining_keeps_the_events_of_both_sessions_byte_for_byte():
    first = b'{"traceEvents":[{"ts":5108592343517.731}],"distributedInfo":{"rank":1}}'
    joined = joined_traces(first, b'{"traceEvents":[{"ts":5108592343999.5}]}')
    assert b"5108592343517.731" in joined  # a float64 would still hold it; a decoder need not
    assert [event["ts"] for event in json.loads(joined)["traceEvents"]] == [
        5108592343517.731,
        5108592343999.5,
    ]
    assert json.loads(joined)["distributedInfo"] == {"rank": 1}


def test_a_trace_is_written_as_soon_as_its_window_ends(tmp_path):
    recorder = Recorder(tmp_path, traced_steps=(1,))
    run_steps(recorder, 1)
    assert recorder.directory.traces().keys() == {0}
    assert [line["step"] for line in recorder.directory.read_steps()] == [1]


def test_no_rank_stops_its_profiler_or_writes_before_all_are_through_the_step(
    tmp_path, monkeypatch
):
    done = []
    monkeypatch.setattr(window, "barrier", lambda: done.append("barrier"))
    stop = torch.profiler.profile.stop
    monkeypatch.setattr(
        torch.profiler.profile, "stop", lambda self: (done.append("stop"), stop(self))
    )
    with Recorder(tmp_path, traced_steps=(2,)) as recorder:
        run_steps(recorder, 2, lambda step: done.append("step"))
    last = len(done) - done[::-1].index("step")
    assert done[last : last + 2] == ["barrier", "stop"]


def test_a_step_that_raises_leaves_nothing_patched_and_marks_the_run_as_failed(tmp_path):
    before = torch.distributed.Work.__dict__["wait"]
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path, traced_steps=(1,)) as recorder:
        run_steps(recorder, 1, lambda step: 1 / 0)
    assert torch.distributed.Work.__dict__["wait"] is before
    assert recorder.directory.read_manifest()["status"] == "failed"
    assert list(recorder.directory.read_steps()) == []


@pytest.mark.parametrize(("ending", "status"), [("", "finished"), ("1 / 0", "failed")])
def test_a_loop_that_never_closes_the_recorder_loses_nothing(tmp_path, ending, status):
    code = f"""
import steptally
recorder = steptally.Recorder({str(tmp_path)!r}, traced_steps=())
with recorder.step() as step:
    step.loss = 1.5
{ending}
"""
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["status"] == status
    assert json.loads((tmp_path / "steps.jsonl").read_text())["loss"] == 1.5


def test_a_directory_that_holds_a_run_is_not_written_into(tmp_path):
    for _ in range(2):
        with Recorder(tmp_path / "mine", traced_steps=()) as recorder:
            run_steps(recorder, 1)
    assert recorder.directory.path == tmp_path / "mine-2"
    assert len((tmp_path / "mine" / "steps.jsonl").read_text().splitlines()) == 1


def test_without_a_directory_the_run_is_named_by_time_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Recorder(name="my run", traced_steps=()) as recorder:
        run_steps(recorder, 1)
    assert recorder.directory.path.parent == tmp_path / "runs"
    assert recorder.directory.path.name.endswith("-my-run")


def test_ranks_that_cannot_agree_on_a_directory_are_told_the_three_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("STEPTALLY_RUN_DIRECTORY", raising=False)
    with pytest.raises(InputError, match=r"rank 1 of 2.*STEPTALLY_RUN_DIRECTORY.*directory="):
        Recorder().step()


def test_a_disk_that_is_full_stops_the_recording_and_not_the_training(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "append_steps", full)
    recorder = Recorder(tmp_path, traced_steps=(1,))
    with pytest.warns(UserWarning, match="No space left on device"):
        run_steps(recorder, 3)
    recorder.close()


def test_the_loops_own_profiler_is_left_alone(tmp_path):
    recorder = Recorder(tmp_path, traced_steps=(1,))
    with torch.profiler.profile() as theirs, pytest.warns(UserWarning, match="own torch profiler"):
        run_steps(recorder, 1, lambda step: torch.ones(2) + 1)
    recorder.close()
    assert "aten::add" in {event.name for event in theirs.events()}
    assert recorder.directory.traces() == {}


def test_steps_outside_the_run_cannot_be_traced(tmp_path):
    with pytest.raises(InputError, match=r"\[9\].*1 to 5"):
        Recorder(tmp_path, steps=5, traced_steps=(2, 9))


@pytest.mark.parametrize("warmup_steps", [0, 2])
@pytest.mark.parametrize("steps", range(1, 30))
def test_the_steps_traced_by_default_leave_one_that_is_timed(steps, warmup_steps):
    traced = choose_traced_steps(steps, warmup_steps)
    assert all(warmup_steps < step <= steps for step in traced)
    timed = steps - warmup_steps - len(traced)
    assert not traced or timed >= 1
    assert traced or steps - warmup_steps < 2


def test_the_job_may_be_megatrons_own_arguments(tmp_path):
    arguments = SimpleNamespace(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=32,
        vocab_size=128,
        global_batch_size=8,
        micro_batch_size=2,
        params_dtype=torch.bfloat16,
        group_query_attention=False,
        num_query_groups=1,  # Megatron-LM's default, which counts only with group_query_attention
        wandb_api_key="hunter2",
    )
    with Recorder(tmp_path, job=vars(arguments), traced_steps=()) as recorder:
        run_steps(recorder, 1)
    manifest = recorder.directory.manifest.read_text()
    job = json.loads(manifest)["job"]
    assert job["architecture"]["ffn_hidden_size"] == 256
    assert job["architecture"]["num_query_groups"] == 4
    assert job["recipe"]["bf16"] is True
    assert "hunter2" not in manifest
    # 8 sequences of 32 tokens
    assert next(recorder.directory.read_steps())["tokens"] == 256


def test_arguments_that_make_no_job_are_kept_with_the_reason(tmp_path):
    with Recorder(tmp_path, job={"num_layers": 2}, traced_steps=()) as recorder:
        run_steps(recorder, 1)
    manifest = recorder.directory.read_manifest()
    assert manifest["job"] is None
    assert manifest["settings"] == {}
    assert manifest["stated_settings"] == {"num_layers": 2}
    assert "hidden_size" in manifest["job_refused"]


def test_the_manifest_says_who_trained_where(tmp_path):
    with Recorder(tmp_path, steps=3, traced_steps=(), seed=7) as recorder:
        run_steps(recorder, 3)
    manifest = recorder.directory.read_manifest()
    assert (manifest["status"], manifest["world_size"], manifest["seed"]) == ("finished", 1, 7)
    assert (manifest["steps"], manifest["warmup_steps"], manifest["traced_steps"]) == (3, 2, [])
    (rank,) = manifest["ranks"]
    assert (rank["rank"], rank["pid"], rank["tp"]) == (0, os.getpid(), None)
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["machine"]["memory_bytes"] > 0


def test_a_step_inside_a_step_is_refused(tmp_path):
    recorder = Recorder(tmp_path, traced_steps=())
    with (
        pytest.raises(InputError, match="Step 2 begins inside step 1"),
        recorder.step(),
        recorder.step(),
    ):
        pass


def test_a_step_that_is_never_entered_has_no_number(tmp_path):
    with Recorder(tmp_path, traced_steps=()) as recorder:
        recorder.step()
        run_steps(recorder, 2)
    assert [line["step"] for line in recorder.directory.read_steps()] == [1, 2]


def test_steps_after_close_are_not_recorded_and_say_so(tmp_path):
    recorder = Recorder(tmp_path, traced_steps=(2,))
    run_steps(recorder, 1)
    recorder.close()
    with pytest.warns(UserWarning, match="no step after close"):
        run_steps(recorder, 2)
    assert [line["step"] for line in recorder.directory.read_steps()] == [1]
    assert recorder.directory.traces() == {}


@pytest.mark.parametrize("loss", ["abc", [1], torch.ones(3), 1j, 10**400, object()])
def test_a_loss_that_is_no_number_does_not_end_the_training(tmp_path, loss):
    recorder = Recorder(tmp_path, traced_steps=())

    def train():
        with recorder, recorder.step() as step:
            step.loss = loss

    # Where the machine stood still for a second, the step itself writes, not the end.
    with pytest.warns(UserWarning, match="records no loss where"):
        train()
    (line,) = recorder.directory.read_steps()
    assert line["loss"] is None


def test_two_recorders_of_one_directory_do_not_mix_their_steps(tmp_path):
    one, two = (Recorder(tmp_path / "run", traced_steps=()) for _ in range(2))
    for recorder in (one, two):
        run_steps(recorder, 1)
    assert one.directory.path != two.directory.path
