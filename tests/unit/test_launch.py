"""However a launch ends: the first failing rank's own error, readable records, no process left."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from steptally.errors import RunError
from steptally.run.launch import Ranks, ranks_environment, see_through
from steptally.run.manifest import describe_job, new_manifest, write_manifest
from steptally.run.processes import MARK_VARIABLE
from steptally.trace.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory as `launch` leaves it before it starts the ranks."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    directory = RunDirectory(tmp_path / "run")
    manifest = new_manifest(
        name="test",
        described=describe_job(None),
        world_size=2,
        steps=10,
        warmup_steps=1,
        traced_steps=(2, 3),
    )
    write_manifest(directory, manifest)
    return directory


def ranks(count, how):
    return Ranks(count=count, module="launched_loop", arguments=[how])


def processes_of(directory):
    """All processes that were told to write into this run directory, zombies left out."""
    wanted = f"STEPTALLY_RUN_DIRECTORY={directory.path}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if wanted in environment and state != "Z":
            found.append(int(path.name))
    return found


def recorded_rank(directory, rank):
    """The process of a rank, once it has written a traced step and some that are not."""
    deadline = time.monotonic() + 300  # a loaded machine takes a minute to import torch
    while time.monotonic() < deadline:
        steps = [line["step"] for line in directory.read_steps()]
        if steps and max(steps) > 5:
            return directory.read_manifest()["ranks"][rank]["pid"]
        time.sleep(0.05)
    raise AssertionError("the ranks recorded nothing in five minutes")


def wait_until_gone(directory, seconds):
    deadline = time.monotonic() + seconds
    while processes_of(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes_of(directory)


@pytest.mark.processes
def test_a_rank_killed_by_sigkill_is_named_its_records_stay_and_no_process_does(run):
    times = {}

    def kill():
        pid = recorded_rank(run, rank=2)
        times["processes"] = len(processes_of(run))
        os.kill(pid, signal.SIGKILL)
        times["killed"] = time.monotonic()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunError, match=r"rank 2 \(pid \d+\) was killed by SIGKILL"):
        see_through(ranks(4, "traced-forever"), run)
    assert time.monotonic() - times["killed"] < 30
    killer.join()
    assert times["processes"] == 1 + 2 * 4  # torchrun, the ranks and a child of each
    assert processes_of(run) == []
    assert run.read_manifest()["status"] == "failed"
    steps = list(run.read_steps())
    assert {line["rank"] for line in steps} == {0, 1, 2, 3}
    assert max(line["step"] for line in steps) > 5
    for path in run.traces().values():
        assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert run.traces().keys() == {0, 1, 2, 3}


@pytest.mark.processes
def test_a_rank_that_raises_is_shown_with_its_own_words_not_with_torchruns(run):
    with pytest.raises(RunError) as raised:
        see_through(ranks(2, "raise"), run)
    message = str(raised.value)
    assert "rank 1 (pid " in message
    assert "failed: ValueError: the data ended\nin the middle of a batch" in message
    assert "ChildFailedError" not in message
    assert "Traceback" not in message
    assert str(run.error(1)) in message
    assert "Traceback" in run.error(1).read_text()
    assert run.read_manifest()["status"] == "failed"
    assert processes_of(run) == []


@pytest.mark.processes
def test_a_run_that_ends_well_is_finished_and_tells_every_step_once(run):
    told = []
    see_through(ranks(2, "traced"), run, on_progress=told.append)
    assert [progress.step for progress in told] == list(range(1, 11))
    assert [progress.traced for progress in told] == [step in (2, 3) for step in range(1, 11)]
    assert told[9].loss == pytest.approx(0.1)
    assert all(progress.duration_ns >= 10_000_000 for progress in told)
    assert run.read_manifest()["status"] == "finished"
    assert [row["rank"] for row in run.read_manifest()["ranks"]] == [0, 1]
    assert processes_of(run) == []


# A launcher of its own, to be interrupted or killed.
LAUNCHER = """
import sys
from pathlib import Path
from steptally.run.launch import Ranks, see_through
from steptally.trace.run_directory import RunDirectory
see_through(
    Ranks(count=2, module="launched_loop", arguments=["forever"]), RunDirectory(Path(sys.argv[1]))
)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "status", "exit_code"),
    [
        (signal.SIGINT, "interrupted", -signal.SIGINT),
        (signal.SIGTERM, "interrupted", 128 + signal.SIGTERM),
        (signal.SIGKILL, "running", -signal.SIGKILL),  # it could not say more
    ],
)
def test_a_launcher_that_is_stopped_takes_its_ranks_with_it(run, number, status, exit_code):
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(run.path)], stderr=subprocess.DEVNULL
    )
    try:
        recorded_rank(run, rank=0)
        launcher.send_signal(number)
        assert launcher.wait(timeout=30) == exit_code
    finally:
        launcher.kill()
    ranks_left = [pid for pid in wait_until_gone(run, 10) if b"launched_loop" in command(pid)]
    for pid in processes_of(run):  # a rank's own children outlive only a launcher killed outright
        assert number == signal.SIGKILL
        os.kill(pid, signal.SIGKILL)
    assert ranks_left == []
    assert run.read_manifest()["status"] == status


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_ranks_share_the_cores_and_keep_what_the_user_has_set(run):
    alone = ranks_environment({}, run, 1, "mark")
    crowded = ranks_environment({}, run, 10_000, "mark")
    chosen = ranks_environment({"OMP_NUM_THREADS": "7", "HOME": "/root"}, run, 1, "mark")
    assert int(alone["OMP_NUM_THREADS"]) >= int(crowded["OMP_NUM_THREADS"]) == 1
    assert (chosen["OMP_NUM_THREADS"], chosen["HOME"]) == ("7", "/root")
    assert chosen[MARK_VARIABLE] == "mark"
