"""Leaves no process behind: finds what a launch has started, wherever it is, and ends it.

A process group is not enough: torchrun puts every worker into a session of its own, and workers
start processes too. Each launch therefore puts a mark of its own into the environment, which every
descendant inherits and which Linux shows in /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

MARK_VARIABLE = "STEPTALLY_LAUNCH_MARK"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(death_signal: signal.Signals) -> None:
    """Ask the kernel to send this process `death_signal` when its parent dies, even by SIGKILL.

    Linux only; elsewhere a launcher that is killed outright leaves its workers to torchrun.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os.kill(os.getpid(), death_signal)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def marked_processes(mark: str) -> list[int]:
    """Process ids of all living processes of one launch, but not this one."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            if wanted in (path / "environ").read_bytes().split(b"\0") and not _is_zombie(path):
                found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def _is_zombie(path: Path) -> bool:
    """Whether it has ended and only waits for its parent to ask how."""
    return (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def end_marked_processes(mark: str, *, grace_s: float) -> None:
    """SIGTERM to every process of a launch, and SIGKILL to those that live on after `grace_s`.

    Returns when none is left, or after another 10 s: the kernel cannot end a process that is stuck
    in a driver.
    """
    _signal_all(marked_processes(mark), signal.SIGTERM)
    started = time.monotonic()
    while (left := marked_processes(mark)) and time.monotonic() < started + grace_s + 10:
        if time.monotonic() > started + grace_s:
            _signal_all(left, signal.SIGKILL)  # and again: one may just have started another
        time.sleep(0.02)


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
