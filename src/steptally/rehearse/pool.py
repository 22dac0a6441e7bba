"""Programs in parallel processes. This process imports no torch: those that run them do, once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from steptally.job import Job
from steptally.rehearse.rehearsed import Program, Rehearsed
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import Rehearsable


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
    megatron-core refuses the job.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["steptally.rehearse.worker"])
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        programs = pool.submit(_all_programs, rehearsable.job, routing).result()
        futures = [
            pool.submit(_rehearse, rehearsable, program, routing, operations)
            for program in programs
        ]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                if on_done is not None:
                    on_done(done, len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


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
