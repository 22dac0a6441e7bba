"""The stopper of `tests/slowed_ranks.py`: at work for its share of the time, and never beyond."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.slowed_ranks import slow_down, stop_and_go

BUSY = "while True: pass"


@pytest.fixture
def busy():
    """A process that uses all the processor that it gets."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    yield process
    process.kill()
    process.wait()


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def processor_time_s(pid):
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def goes_on(pid):
    """Whether it is not stopped, looked at for longer than a period."""
    states = set()
    for _ in range(30):
        states.add(state(pid))
        time.sleep(0.002)
    return "T" not in states


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_the_time_of_a_process_is_stretched_by_the_factor(busy, factor):
    def end():
        busy.kill()
        busy.wait()

    threading.Timer(1.0, end).start()
    could_run_s, stopped_s = stop_and_go(busy.pid, factor, 0.01)
    assert (could_run_s + stopped_s) / could_run_s == pytest.approx(factor, rel=0.1)


def test_a_slowed_process_gets_no_more_than_its_share_of_a_core_and_goes_on_after(busy):
    with slow_down(busy.pid, 3.0):
        began, spent = time.monotonic(), processor_time_s(busy.pid)
        states = set()
        while time.monotonic() < began + 1.0:
            states.add(state(busy.pid))
            time.sleep(0.0007)
        share = (processor_time_s(busy.pid) - spent) / (time.monotonic() - began)
    assert states == {"T", "R"}  # stopped, and running or ready to
    assert share < 1 / 3 + 0.1
    assert goes_on(busy.pid)


def test_it_goes_on_when_the_block_fails(busy):
    with pytest.raises(ZeroDivisionError), slow_down(busy.pid, 2):
        raise ZeroDivisionError
    assert goes_on(busy.pid)


def test_it_goes_on_when_the_stopper_is_killed_while_it_is_stopped(busy):
    with slow_down(busy.pid, 20.0, period_ms=400) as stopper:
        while state(busy.pid) != "T":
            time.sleep(0.001)
        stopper.send_signal(signal.SIGKILL)
        stopper.wait()
        assert state(busy.pid) == "T"
    assert goes_on(busy.pid)


def test_it_goes_on_when_the_one_that_started_the_stopper_is_killed(busy):
    program = (
        "import sys, time; from tests.slowed_ranks import slow_down\n"
        f"with slow_down({busy.pid}, 2.0):\n"
        "    print('slowed', flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[2]
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE)
    assert starter.stdout.readline() == b"slowed\n"
    starter.kill()
    starter.wait()
    starter.stdout.close()
    deadline = time.monotonic() + 10
    while not goes_on(busy.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert goes_on(busy.pid)


def test_a_process_that_ends_ends_the_stopper(busy):
    with slow_down(busy.pid, 2.0) as stopper:
        busy.kill()
        busy.wait()
        assert stopper.wait(timeout=10) == 0


def test_a_factor_of_one_or_less_is_refused(busy):
    with pytest.raises(ValueError, match="must be above 1"), slow_down(busy.pid, 1.0):
        pass
