"""Memory bandwidth of the whole device, as STREAM measures it: copy and triad over large arrays.

Bytes are counted as STREAM counts them (McCalpin 1995): each array read or written once, without
the read that a cache makes before a write.
"""

from __future__ import annotations

from collections.abc import Callable

from steptally.job.calibration import Samples
from steptally.job.machine import last_level_cache_bytes, memory_bytes
from steptally.run.sampling import sample_times, timed_by_clock, timed_by_cuda_events

ASSUMED_CACHE_BYTES = 64 * 1024**2
SMALLEST_ARRAY_BYTES = 64 * 1024**2
CUDA_ARRAY_BYTES = 1024**3
CASE_BUDGET_S = 0.5
ELEMENT_BYTES = 4


def memory_rates(*, on_cuda: bool) -> list[Samples]:
    """Bytes/s of `a = b` (2 arrays) and `a = b + s·c` (3 arrays) in fp32."""
    import torch

    size_bytes = CUDA_ARRAY_BYTES if on_cuda else array_bytes()
    where = "cuda" if on_cuda else "cpu"
    a, b, c = (
        torch.full((size_bytes // ELEMENT_BYTES,), value, dtype=torch.float32, device=where)
        for value in (0.0, 1.0, 2.0)
    )
    kernels: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: a.copy_(b)),
        "triad": (3, lambda: torch.add(b, c, alpha=3.0, out=a)),
    }
    timed = timed_by_cuda_events if on_cuda else timed_by_clock
    return [
        Samples(
            quantity=f"memory {name}",
            case=f"{arrays} arrays of {size_bytes // 1024**2} MiB",
            unit="byte/s",
            samples=tuple(
                arrays * size_bytes / time_s
                for time_s in sample_times(timed(kernel), budget_s=CASE_BUDGET_S)
            ),
        )
        for name, (arrays, kernel) in kernels.items()
    ]


def array_bytes() -> int:
    """Four times the last-level cache, so that little of an array is still cached, as STREAM asks.

    At most a sixteenth of the memory, since three arrays are held.
    """
    wanted = max(SMALLEST_ARRAY_BYTES, 4 * (last_level_cache_bytes() or ASSUMED_CACHE_BYTES))
    memory = memory_bytes()
    return min(wanted, memory // 16) if memory else wanted
