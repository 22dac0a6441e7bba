"""Measures many traces, each independent of the others: in a pool of processes, or in this one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

from steptally.errors import InputError
from steptally.measure.trace_account import TraceAccount, TraceOptions, account_for_trace
from steptally.trace.optable import write_table
from steptally.trace.read import TraceSource

# Below this many bytes of files, starting processes takes longer than reading.
SMALLEST_POOLED_BYTES = 64 * 2**20
# Results that wait to be merged hold memory: tasks are handed out as others are taken back.
TASKS_AHEAD = 2

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One source's account, or why there is none; `is_numbered` where nothing told its rank."""

    source: TraceSource
    account: TraceAccount | None = None
    error: str = ""
    is_numbered: bool = False


def measure_source(source: TraceSource, number: int, options: TraceOptions) -> Outcome:
    """Read and measure one source; where nothing tells its rank, it is rank `number`."""
    try:
        trace = source.read(options.rules, options.low_memory)
        told = trace.rank if source.rank is None else source.rank
        rank = number if told is None else told
        account = account_for_trace(trace, rank, options)
    except InputError as error:
        return Outcome(source=source, error=str(error))
    if options.save is not None:
        write_table(trace, options.save / f"rank{rank}.parquet")
    return Outcome(source=source, account=account, is_numbered=told is None)


def measure_sources(
    sources: Sequence[TraceSource], options: TraceOptions, processes: int | None = None
) -> Iterator[Outcome]:
    """Every source's outcome as it is ready, in any order; `processes` as in `each_source`."""
    return each_source(sources, partial(measure_source, options=options), processes)


def each_source(
    sources: Sequence[TraceSource],
    measure: Callable[[TraceSource, int], Result],
    processes: int | None = None,
) -> Iterator[Result]:
    """What `measure` makes of each source, as it is ready, in any order.

    `measure` is given a source and the rank it has where nothing else tells one, and is picklable,
    as its result is. `processes` is how many work at once (default: as many as there are cores,
    and one where the files are small). Raises `InputError` where a process is killed.
    """
    if processes is None:
        paths = {source.path for source in sources}
        size_bytes = sum(path.stat().st_size for path in paths if path.exists())
        processes = available_cores() if size_bytes >= SMALLEST_POOLED_BYTES else 1
    tasks = list(zip(sources, _numbers(sources), strict=True))
    if min(processes, len(tasks)) <= 1:
        for source, number in tasks:
            yield measure(source, number)
        return
    yield from _pooled(tasks, measure, min(processes, len(tasks)))


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _numbers(sources: Sequence[TraceSource]) -> list[int]:
    """What each source's rank is called if nothing else tells it: no other source's."""
    told = {source.rank for source in sources}
    free = (number for number in count() if number not in told)
    return [next(free) if source.rank is None else source.rank for source in sources]


def _pooled(
    tasks: Sequence[tuple[TraceSource, int]],
    measure: Callable[[TraceSource, int], Result],
    processes: int,
) -> Iterator[Result]:
    """Processes are started afresh: a fork of polars' threads can hang."""
    context = multiprocessing.get_context("spawn")
    waiting = iter(tasks)
    with _one_thread_each(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: set[Future[Result]] = set()
        while True:
            while len(running) < processes * TASKS_AHEAD and (task := next(waiting, None)):
                running.add(pool.submit(measure, *task))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    yield future.result()
                except BrokenProcessPool as error:
                    raise InputError(
                        f"a process that read traces was killed, most likely for memory, with "
                        f"{processes} at once: use --processes 1, or --low-memory. (From a script "
                        "of your own: call this below `if __name__ == '__main__':`.)"
                    ) from error


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """The processes are as many as the cores: polars' own threads would only contend."""
    name = "POLARS_MAX_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
