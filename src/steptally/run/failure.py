"""Which rank failed first, and what it said.

When one rank dies, the others lose their connections to it and fail as well, often within a
millisecond; torchrun then ends the rest. The first cause is not the first in time: a rank that was
killed says nothing, while its peers complain at once.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from steptally.run.processes import signal_name
from steptally.trace.run_directory import RunDirectory

# What gloo, NCCL and torch's store say in a rank whose peer has gone.
_LOST_PEER = re.compile(
    r"connection closed by peer|connection reset|broken pipe|connection refused|socket timeout"
    r"|pair closure|timed out waiting|remote process (?:has )?exited|failed to recv"
    r"|communicator was aborted|nccl watchdog",
    re.IGNORECASE,
)
# A process ends itself by SIGABRT on a C++ exception, which a lost peer may cause as well.
_CAUSING_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
)
_LOG_LINES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How one rank ended: its exit code (negative: the signal), its error and when it was known."""

    rank: int
    pid: int
    exit_code: int
    unix_ns: int
    error: str | None = None


def read_failures(directory: RunDirectory) -> list[RankFailure]:
    """What torchrun reported of each failed rank, with the error that the rank left."""
    try:
        rows = json.loads(directory.failures.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [_with_error(directory, row) for row in rows]


def _with_error(directory: RunDirectory, row: dict[str, int]) -> RankFailure:
    error, unix_ns = None, (row["noticed_unix_s"] + 1) * 1_000_000_000
    path = directory.error(row["rank"])
    if path.exists():
        error = path.read_text(encoding="utf-8", errors="replace")
        unix_ns = path.stat().st_mtime_ns
    return RankFailure(
        rank=row["rank"],
        pid=row["pid"],
        exit_code=row["exit_code"],
        unix_ns=unix_ns,
        error=error,
    )


def first_failure(failures: Sequence[RankFailure]) -> RankFailure:
    """The failure that caused the others: the earliest of the most telling kind."""
    return min(failures, key=lambda failure: (_distance_from_cause(failure), failure.unix_ns))


def _distance_from_cause(failure: RankFailure) -> int:
    if failure.exit_code == -signal.SIGTERM:
        return 3  # torchrun ended it because of another
    if failure.error is not None:
        return 2 if _LOST_PEER.search(failure.error) else 0
    return 0 if -failure.exit_code in _CAUSING_SIGNALS else 1


def describe_failure(failure: RankFailure, directory: RunDirectory) -> str:
    """One or two sentences: which rank, how it ended, where to read more."""
    who = f"rank {failure.rank} (pid {failure.pid})"
    if failure.error is not None:
        where = f"the whole of it is in {directory.error(failure.rank)}"
        return f"{who} failed: {exception_line(failure.error)} ({where})"
    if failure.exit_code == -signal.SIGKILL:
        hint = "if nobody killed it: the kernel does when memory runs out, see `dmesg`"
        return f"{who} was killed by SIGKILL ({hint})."
    if failure.exit_code < 0:
        name = signal_name(-failure.exit_code)
        return f"{who} was killed by {name}.{_last_lines(failure, directory)}"
    return f"{who} exited with status {failure.exit_code}.{_last_lines(failure, directory)}"


def exception_line(text: str) -> str:
    """The exception of a traceback, without the frames; any other text as it is.

    >>> exception_line('Traceback (most recent call last):\\n  File "a.py"\\nValueError: boom\\n')
    'ValueError: boom'
    """
    lines = text.strip().splitlines()
    for number in range(len(lines) - 1, 0, -1):
        if lines[number - 1].startswith("  ") and not lines[number].startswith(" "):
            return "\n".join(lines[number:])
    return "\n".join(lines)


def _last_lines(failure: RankFailure, directory: RunDirectory) -> str:
    path = directory.log(failure.rank)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    shown = "".join(f"\n  {line}" for line in lines[-_LOG_LINES_SHOWN:])
    return f" The end of {path}:{shown}" if shown else ""
