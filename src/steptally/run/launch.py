"""Starts the ranks of a job on this machine under torchrun, and sees them through to the end.

    steptally run → launch → agent (torchrun) → rank_process → worker, once for each rank

However it ends, no process is left: each level dies with the one above it, and what is left of the
launch is found by its mark and ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import steptally
from steptally.errors import RunError
from steptally.job import Job
from steptally.run.failure import describe_failure, first_failure, read_failures
from steptally.run.faults.fault import Fault
from steptally.run.machine import usable_cores
from steptally.run.manifest import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    change_manifest,
    describe_job,
    new_manifest,
    write_manifest,
)
from steptally.run.naming import new_run_path
from steptally.run.processes import MARK_VARIABLE, end_marked_processes, signal_name
from steptally.run.progress import StepFollower, StepProgress
from steptally.run.schedule import check_steps, choose_traced_steps
from steptally.trace.run_directory import ENVIRONMENT_VARIABLE, RunDirectory, write_atomically

WORKER_MODULE = "steptally.run.worker"

_POLL_INTERVAL_S = 0.1
_GRACE_S = 3.0  # between SIGTERM and SIGKILL


def launch(
    job: Job,
    *,
    steps: int,
    name: str | None = None,
    directory: Path = Path("runs"),
    warmup_steps: int = 2,
    traced_steps: Sequence[int] | None = None,
    data: str = "corpus",
    faults: Sequence[Fault] = (),
    on_progress: Callable[[StepProgress], None] | None = None,
) -> RunDirectory:
    """Train `job` for `steps` steps on this machine, `job.layout.world_size` ranks, and record it.

    The run directory is made in `directory`, named by the time and `name` (the job's unless given).
    The first `warmup_steps` are not timed, `traced_steps` (from 1; `choose_traced_steps` unless
    given) are profiled. `data` is `corpus`, `random` or a text file. `faults`, which
    `faults.check.check_faults` has let pass, are injected and named in the manifest. `on_progress`
    is called in this thread for each step that all ranks have finished.

    Raises `RunError` with the error of the first rank that failed, `InputError` for steps that are
    not in the run. Whatever happens, no process is left when it returns or raises, and the
    manifest's `status` says how the run ended.
    """
    if traced_steps is None:
        traced_steps = choose_traced_steps(steps, warmup_steps)
    check_steps(steps, warmup_steps, traced_steps)
    name = name or job.name
    run = RunDirectory(new_run_path(directory, name))
    manifest = new_manifest(
        name=name,
        described=describe_job(job),
        world_size=job.layout.world_size,
        steps=steps,
        warmup_steps=warmup_steps,
        traced_steps=traced_steps,
        seed=job.recipe.seed,
        injected=faults,
    )
    write_manifest(run, manifest)
    description = {
        "name": job.name,
        "source": job.source,
        "settings": job.settings(),
        "assumed": dict(job.assumed),
    }
    write_atomically(run.job, json.dumps(description, indent=1))
    arguments = [
        *("--job", str(run.job)),
        *("--steps", str(steps)),
        *("--data", data),
        *("--warmup-steps", str(warmup_steps)),
        *("--traced-steps", ",".join(map(str, traced_steps))),
        *("--errors", str(run.error(0).parent)),
        *(word for fault in faults for word in ("--inject", fault.spec)),
    ]
    ranks = Ranks(count=job.layout.world_size, module=WORKER_MODULE, arguments=arguments)
    see_through(ranks, run, on_progress=on_progress)
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What to start: `count` processes of `python -m module arguments`."""

    count: int
    module: str
    arguments: Sequence[str] = ()


def see_through(
    ranks: Ranks,
    run: RunDirectory,
    *,
    on_progress: Callable[[StepProgress], None] | None = None,
) -> None:
    """Start the ranks, follow them, and leave none; the manifest must have been written.

    Raises `RunError` where a rank failed.
    """
    mark = uuid.uuid4().hex
    status = FAILED
    try:
        with _signals_as_exceptions():
            exit_code = _run_to_the_end(ranks, run, mark, on_progress)
        status = FINISHED if exit_code == 0 else FAILED
    except (KeyboardInterrupt, SystemExit):
        status = INTERRUPTED
        raise
    finally:
        end_marked_processes(mark, grace_s=_GRACE_S)
        change_manifest(run, status=status)
    if exit_code != 0:
        raise RunError(_explain(run, exit_code))


def _run_to_the_end(
    ranks: Ranks,
    run: RunDirectory,
    mark: str,
    on_progress: Callable[[StepProgress], None] | None,
) -> int:
    follower = StepFollower(run, ranks.count)
    run.log(0).parent.mkdir(parents=True, exist_ok=True)
    with (run.log(0).parent / "torchrun.log").open("wb") as log:
        agent = subprocess.Popen(
            torchrun_command(ranks, run),
            env=ranks_environment(os.environ, run, ranks.count, mark),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C is for the launcher, which ends the ranks in order
        )
    while agent.poll() is None:
        time.sleep(_POLL_INTERVAL_S)
        _tell(follower, on_progress)
    _tell(follower, on_progress)
    return agent.returncode


def _tell(follower: StepFollower, on_progress: Callable[[StepProgress], None] | None) -> None:
    for progress in follower.finished_steps():
        if on_progress is not None:
            on_progress(progress)


def torchrun_command(ranks: Ranks, run: RunDirectory) -> list[str]:
    """The command line of the agent. torchrun itself picks a free port on the loopback."""
    return [
        *(sys.executable, "-m", "steptally.run.agent", str(run.failures)),
        *("--nnodes", "1", "--nproc-per-node", str(ranks.count)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1", "--max-restarts", "0"),
        *("-m", "steptally.run.rank_process", ranks.module, *ranks.arguments),
    ]


def ranks_environment(
    own: Mapping[str, str], run: RunDirectory, count: int, mark: str
) -> dict[str, str]:
    """The environment of the ranks: this process's, and what they share the machine by.

    What the user has set is kept: OMP_NUM_THREADS, GLOO_SOCKET_IFNAME.
    """
    package = str(Path(steptally.__file__).resolve().parents[1])
    return {
        # Each rank its share of the cores: more threads than cores slow every rank down.
        "OMP_NUM_THREADS": str(max(1, usable_cores() // count)),
        # gloo otherwise listens on the interface that the host's name resolves to, if it does.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
        **own,
        # A file of the working directory must not stand in for a module (json.py, queue.py).
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [package, own.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        ENVIRONMENT_VARIABLE: str(run.path),
        MARK_VARIABLE: mark,
    }


def _explain(run: RunDirectory, exit_code: int) -> str:
    kept = f"What was recorded is in {run.path}; no process is left."
    failures = read_failures(run)
    if failures:
        return f"{describe_failure(first_failure(failures), run)}\n{kept}"
    how = f"exited with status {exit_code}"
    if exit_code < 0:
        how = f"was killed by {signal_name(-exit_code)}"
    return f"torchrun {how} and reported no rank (see {run.path}/logs/torchrun.log).\n{kept}"


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that they end the ranks as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    originals = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, original in originals.items():
            signal.signal(number, original)
