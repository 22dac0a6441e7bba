"""Programs in parallel processes. This process imports no torch: those that run them do, once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from steptally.errors import RunError
from steptally.job import Job
from steptally.rehearse.rehearsed import Program, Rehearsed
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import Rehearsable

Result = TypeVar("Result")


def rehearse_one(
    rehearsable: Rehearsable, rank: int, routing: Routing, operations: Path | None = None
) -> Rehearsed:
    """Run the program of one rank, in this process.

    `operations` is a directory for its table of operations. Raises `InputError` where the job has
    no such rank, or megatron-core refuses the job.
    """
    from steptally.rehearse.worker import choose_programs, rehearse_program

    (program,) = choose_programs(rehearsable.job, routing, rank)
    return rehearse_program(rehearsable, program, routing, operations)


def rehearse_all(
    rehearsable: Rehearsable,
    routing: Routing,
    *,
    processes: int,
    operations: Path | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[Rehearsed]:
    """Run every distinct program of the job, up to `processes` at a time.

    `on_done` is called with how many are done, and of how many. Raises `InputError` where
    megatron-core refuses the job, `RunError` where a process dies.
    """
    with _process_pool(processes) as pool:
        programs = _submit(pool, _all_programs, rehearsable.job, routing).result()
        futures = [
            _submit(pool, _rehearse, rehearsable, program, routing, operations)
            for program in programs
        ]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            if on_done is not None:
                on_done(done, len(futures))
        return [future.result() for future in futures]


@contextlib.contextmanager
def _process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that import torch once each; none outlives the body, or this process.

    Raises `RunError` where one of them is killed.
    """
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_end_with_parent)
    try:
        yield pool
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise RunError(
                "a process that rehearsed a program was killed, most often because memory ran "
                "out: rehearse fewer programs at a time (--processes 1), or one rank (--rank)."
            ) from error
        raise
    pool.shutdown()


def _submit(
    pool: ProcessPoolExecutor, function: Callable[..., Result], *arguments: Any
) -> Future[Result]:
    """Submit; a process that this starts is deaf to Ctrl-C, which reaches all of a terminal's.

    This process answers it, and ends the others.
    """
    resource_tracker.ensure_running()  # it unblocks the signal as it starts
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """Watch the parent: where it is killed, nothing else would end this process."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def usable_processes() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _all_programs(job: Job, routing: Routing) -> list[Program]:
    from steptally.rehearse.worker import choose_programs

    return choose_programs(job, routing, None)


def _rehearse(
    rehearsable: Rehearsable, program: Program, routing: Routing, operations: Path | None
) -> Rehearsed:
    from steptally.rehearse.worker import rehearse_program

    return rehearse_program(rehearsable, program, routing, operations)
