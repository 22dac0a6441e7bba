"""Times of a repeated call on this process's device, each sample long enough to be believed."""

from __future__ import annotations

import time
from collections.abc import Callable

# A sample shorter than this is repeated until it is not: clocks and launches cost microseconds.
SHORTEST_SAMPLE_S = 0.01
REPETITIONS = 5


def sample_times(work: Callable[[], object], *, budget_s: float, on_cuda: bool) -> list[float]:
    """Seconds of one call of `work`, several times over.

    The first call warms up and decides how many calls a sample holds. Sampling stops after
    `REPETITIONS` samples or when `budget_s` is spent, but never before the second.
    """
    timed = _timed_by_cuda_events if on_cuda else _timed_by_clock
    timed(work, 1)
    once_s = max(timed(work, 1), 1e-9)
    calls = max(1, round(SHORTEST_SAMPLE_S / once_s))
    deadline = time.perf_counter() + budget_s
    samples: list[float] = []
    while len(samples) < REPETITIONS and (len(samples) < 2 or time.perf_counter() < deadline):
        samples.append(timed(work, calls) / calls)
    return samples


def _timed_by_clock(work: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - start


def _timed_by_cuda_events(work: Callable[[], object], calls: int) -> float:
    """Time on the GPU itself: kernels run long after the call that launched them returned."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
