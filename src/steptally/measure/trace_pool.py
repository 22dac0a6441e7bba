"""Measures many traces, each independent of the others: in a pool of processes, or in this one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from steptally.errors import InputError
from steptally.measure.trace_account import TraceAccount, TraceOptions, account_for_trace
from steptally.trace.kinds import Rules
from steptally.trace.schema import Trace

# Below this many bytes of files, starting processes takes longer than reading.
SMALLEST_POOLED_BYTES = 64 * 2**20
# Results that wait to be merged hold memory: tasks are handed out as others are taken back.
TASKS_AHEAD = 2


class Source(Protocol):
    """One trace that can be read; picklable."""

    @property
    def path(self) -> Path:
        """The file that holds it."""

    @property
    def rank(self) -> int | None:
        """Its rank, where that is known before it is read."""

    def read(self, rules: Rules) -> Trace:
        """Read it by these rules; raises `InputError` for what cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One source's account, or why there is none; `is_numbered` where nothing told its rank."""

    source: Source
    account: TraceAccount | None = None
    error: str = ""
    is_numbered: bool = False


def measure_source(source: Source, place: int, options: TraceOptions) -> Outcome:
    """Read and measure one source; where nothing tells its rank, it is rank `place`."""
    try:
        trace = source.read(options.rules)
        told = trace.rank if source.rank is None else source.rank
        account = account_for_trace(trace, place if told is None else told, options)
    except InputError as error:
        return Outcome(source=source, error=str(error))
    return Outcome(source=source, account=account, is_numbered=told is None)


def measure_sources(
    sources: Sequence[Source], options: TraceOptions, processes: int | None = None
) -> Iterator[Outcome]:
    """Every source's outcome as it is ready, in any order.

    `processes` is how many work at once (default: as many as there are cores, and one where the
    files are small). Raises `InputError` where a process is killed.
    """
    size_bytes = sum(source.path.stat().st_size for source in sources if source.path.exists())
    if processes is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        processes = cores if size_bytes >= SMALLEST_POOLED_BYTES else 1
    if min(processes, len(sources)) <= 1:
        for place, source in enumerate(sources):
            yield measure_source(source, place, options)
        return
    yield from _pooled(sources, options, min(processes, len(sources)))


def _pooled(sources: Sequence[Source], options: TraceOptions, processes: int) -> Iterator[Outcome]:
    """Processes are started afresh: a fork of polars' threads can hang."""
    context = multiprocessing.get_context("spawn")
    places = iter(enumerate(sources))
    with _one_thread_each(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            while len(running) < processes * TASKS_AHEAD and (task := next(places, None)):
                running.add(pool.submit(measure_source, task[1], task[0], options))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    yield future.result()
                except BrokenProcessPool as error:
                    raise InputError(
                        f"a process that read traces was killed, most likely for memory, with "
                        f"{processes} at once: use --processes 1."
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
