"""Slows a process down from outside, as a slow or shared machine does; knows nothing of steptally.

    with slow_down(rank_pid(run, 3), 2.0):
        ...                                   # rank 3 runs at half its speed

A process of its own stops the other (SIGSTOP) for a part of each period and lets it go on
(SIGCONT). However it ends, the other is let go on: by itself at its end, and by `slow_down` should
it have been killed.

By hand, until it is ended: python -m tests.slowed_ranks PID FACTOR [PERIOD_MS]
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from steptally.run.processes import die_with_parent

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def slow_down(pid, factor, period_ms=10.0):
    """Let `pid` run for 1 / `factor` of each period, until the block ends; yields the stopper."""
    if factor <= 1:
        raise ValueError(f"factor is {factor}: it must be above 1")
    stopper = subprocess.Popen(
        [sys.executable, "-m", "tests.slowed_ranks", *map(str, (pid, factor, period_ms))],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        stopper.stdout.readline()  # it has begun
        yield stopper
    finally:
        stopper.terminate()
        stopper.wait()
        stopper.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def rank_pid(run, rank, *, patience_s=300):
    """The process of a rank of a run that is starting, once its manifest tells."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        rows = run.read_manifest()["ranks"] if run.manifest.exists() else []
        found = [row["pid"] for row in rows if row["rank"] == rank]
        if found:
            return found[0]
        time.sleep(0.05)
    raise TimeoutError(f"{run.manifest} names no rank {rank} after {patience_s} s")


def stop_and_go(pid, factor, period_s):
    """Stop and let go in turn, until the process ends or this one is told to.

    On a loaded machine this process is late at either: each stop lasts for what all the time that
    the other could run is to be stretched by, less what it has been stopped for. Returns both.
    """
    could_run_s = stopped_s = 0.0
    try:
        while True:
            could_run_s += slept(period_s / factor)
            os.kill(pid, signal.SIGSTOP)
            stopped_s += slept((factor - 1) * could_run_s - stopped_s)
            os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return could_run_s, stopped_s
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def slept(duration_s):
    """Sleep for so long; how long it was."""
    began = time.monotonic()
    time.sleep(max(0.0, duration_s))
    return time.monotonic() - began


def main():
    """One stopper: PID FACTOR [PERIOD_MS]."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    die_with_parent(signal.SIGTERM)
    pid, factor, period_ms = int(sys.argv[1]), float(sys.argv[2]), float((*sys.argv, 10)[3])
    print("stopping", pid, flush=True)
    stop_and_go(pid, factor, period_ms / 1000)


if __name__ == "__main__":
    main()
