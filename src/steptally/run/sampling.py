"""Times of a repeated call, each sample long enough to be believed.

A *timer* takes a number of calls, makes them, and returns the seconds they took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

Timer = Callable[[int], float]

# Shorter than this, clocks, launches and the scheduler's time slices show.
SHORTEST_SAMPLE_S = 0.03
FEWEST_SAMPLES = 3
MOST_SAMPLES = 5
MOST_CALLS = 2**20


def sample_times(timer: Timer, *, budget_s: float) -> list[float]:
    """Seconds of one call, several times over.

    Calls are doubled until they fill a sample, which warms up too. Sampling stops after
    `MOST_SAMPLES` samples or when `budget_s` is spent, but never before `FEWEST_SAMPLES`.
    """
    calls = 1
    while timer(calls) < SHORTEST_SAMPLE_S and calls < MOST_CALLS:
        calls *= 2
    deadline = time.perf_counter() + budget_s
    samples: list[float] = []
    while len(samples) < FEWEST_SAMPLES or (
        len(samples) < MOST_SAMPLES and time.perf_counter() < deadline
    ):
        samples.append(timer(calls) / calls)
    return samples


def timed_by_clock(work: Callable[[], object]) -> Timer:
    """Wall time."""

    def timer(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - start

    return timer


def timed_by_cpu(works: Sequence[Callable[[], object]], threads: Executor) -> Timer:
    """CPU time, the mean of threads that do one of `works` each, all at once.

    Equal to wall time on an idle machine; where other work takes turns on the cores, its turns are
    not counted.
    """

    def cpu_time_s(work: Callable[[], object], calls: int) -> float:
        start = time.thread_time()
        for _ in range(calls):
            work()
        return time.thread_time() - start

    def timer(calls: int) -> float:
        return sum(threads.map(cpu_time_s, works, [calls] * len(works))) / len(works)

    return timer


def timed_by_cuda_events(work: Callable[[], object]) -> Timer:
    """Time on the GPU itself: kernels run long after the call that launched them returned."""
    import torch

    def timer(calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    return timer
