"""`steptally rehearse --stages` whose processes are ended from outside."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.rehearsals import needs_engine

DEADLINE_S = 60


@pytest.fixture
def rehearsing():
    """A rehearsal in a session of its own, with a process that rehearses one of many programs."""
    needs_engine()
    command = [sys.executable, "-m", "steptally", "rehearse", "gpt3-175b", "--stages"]
    settings = ["pipeline_model_parallel_size=8", "world_size=8", "transformer_impl=local"]
    overrides = [part for setting in settings for part in ("--set", setting)]
    started = subprocess.Popen(
        [*command, *overrides, "--processes", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    wait_until(lambda: workers(started.pid))
    yield started
    for pid in members(started.pid):
        os.kill(pid, signal.SIGKILL)
    started.wait()


def members(session):
    """Living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def workers(session):
    """Those of them that rehearse: Python's own names of them are on their command lines."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in members(session)}
    return [pid for pid, line in lines.items() if b"spawn_main" in line]


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
class TestEndedFromOutside:
    """Nothing stays behind, and nobody is shown a traceback."""

    @pytest.mark.parametrize("seconds", [0, 4])
    def test_ctrl_c_ends_every_process_at_once(self, rehearsing, seconds):
        time.sleep(seconds)  # while a worker starts, and while it imports or rehearses
        os.killpg(rehearsing.pid, signal.SIGINT)
        _, said = rehearsing.communicate(timeout=DEADLINE_S)
        assert rehearsing.returncode == 130
        assert "Traceback" not in said
        wait_until(lambda: not members(rehearsing.pid))

    def test_a_killed_worker_is_one_sentence(self, rehearsing):
        os.kill(workers(rehearsing.pid)[0], signal.SIGKILL)
        _, said = rehearsing.communicate(timeout=DEADLINE_S)
        assert rehearsing.returncode == 2
        assert said.startswith("steptally: a process that rehearsed a program was killed")
        assert said.count("\n") == 1

    def test_workers_end_with_a_killed_parent(self, rehearsing):
        time.sleep(2)  # a worker must have started to watch
        os.kill(rehearsing.pid, signal.SIGKILL)
        wait_until(lambda: not members(rehearsing.pid))
