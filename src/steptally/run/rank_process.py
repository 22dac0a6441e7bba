"""The outermost frame of one rank: `python -m steptally.run.rank_process MODULE ARGUMENTS`.

Runs MODULE as `python -m` would, and sees to what must hold whatever it does: its output goes to
the rank's own log, its error to a file of its own, and it does not outlive torchrun.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from steptally.errors import SteptallyError
from steptally.run.processes import die_with_parent
from steptally.trace.run_directory import ENVIRONMENT_VARIABLE, RunDirectory, write_atomically


def main() -> None:
    """Run the module of this rank."""
    die_with_parent(signal.SIGKILL)
    directory = RunDirectory(Path(os.environ[ENVIRONMENT_VARIABLE]))
    rank = int(os.environ["RANK"])
    _redirect_output(directory.log(rank))
    faulthandler.enable()  # a crash in native code then leaves its Python stack in the log
    module, *sys.argv[1:] = sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        text = str(error) if isinstance(error, SteptallyError) else traceback.format_exc()
        write_atomically(directory.error(rank), text)
        sys.stderr.write(text)
        _leave(1)


def _redirect_output(path: Path) -> None:
    """Send what this process and its libraries print to one file, a line at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def _leave(status: int) -> None:
    """End now: torch's orderly shutdown would wait for ranks that wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
