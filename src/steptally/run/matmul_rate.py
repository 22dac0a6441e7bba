"""The fastest matrix product of this machine, per dtype.

On a CPU every core multiplies matrices of its own, all at once, as the ranks of a run do; time is
CPU time. One product split over all cores would be timed by its slowest thread: where anything
else runs, a hundredth of the peak was seen.

A linear layer multiplies in three operand layouts: forward A·Bᵀ, gradient of the input A·B,
gradient of the weight Aᵀ·B. Kernels differ by layout (15 times in bf16 on a CPU without bf16
instructions), so that the peak is the best over layouts and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from steptally.job.calibration import Samples
from steptally.run.sampling import Timer, sample_times, timed_by_cpu, timed_by_cuda_events

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Edges of square products, the smallest first: each tells how long the next will take.
SIZES_CPU = (256, 512, 1024, 2048, 4096)
SIZES_CUDA = (2048, 4096, 8192, 16384)
LAYOUTS = ("A·Bᵀ", "A·B", "Aᵀ·B")
LONGEST_CALL_S = 0.1
CASE_BUDGET_S = 0.15


def matmul_rates(dtype: str, *, cores: int, on_cuda: bool) -> list[Samples]:
    """FLOP/s of n × n products of one dtype (`fp32`, `bf16`, `fp16`), one entry a size and layout.

    2·n³ FLOPs a product, on `cores` cores at once (on CUDA one GPU). A size whose product would
    take longer than `LONGEST_CALL_S` is left out.
    """
    at_once = 1 if on_cuda else cores
    return [
        Samples(
            quantity=f"matmul {dtype}",
            case=f"n = {size}, {layout}",
            unit="FLOP/s",
            samples=tuple(at_once * 2 * size**3 / time_s for time_s in times_s),
        )
        for layout in LAYOUTS
        for size, times_s in _times_of_sizes(dtype, layout, at_once, on_cuda)
    ]


def _times_of_sizes(
    dtype: str, layout: str, at_once: int, on_cuda: bool
) -> Iterator[tuple[int, list[float]]]:
    expected_s, previous = 0.0, 1
    for size in SIZES_CUDA if on_cuda else SIZES_CPU:
        expected_s *= (size / previous) ** 3
        if expected_s > LONGEST_CALL_S:
            return
        with _timer(dtype, layout, size, at_once, on_cuda) as timer:
            times_s = sample_times(timer, budget_s=CASE_BUDGET_S)
        yield size, times_s
        expected_s, previous = min(times_s), size


@contextmanager
def _timer(dtype: str, layout: str, size: int, at_once: int, on_cuda: bool) -> Iterator[Timer]:
    products = [_product(dtype, layout, size, on_cuda) for _ in range(at_once)]
    if on_cuda:
        yield timed_by_cuda_events(products[0])
        return
    with ThreadPoolExecutor(at_once) as threads:
        yield timed_by_cpu(products, threads)


def _product(dtype: str, layout: str, size: int, on_cuda: bool) -> Callable[[], object]:
    import torch

    where = "cuda" if on_cuda else "cpu"
    generator = torch.Generator(device=where).manual_seed(size)
    # Entries of the size that training has: products of denormals or infinities take other times.
    a, b = (
        torch.randn(size, size, generator=generator, device=where)
        .div(math.sqrt(size))
        .to(getattr(torch, DTYPES[dtype]))
        for _ in range(2)
    )
    left = a.T if layout.startswith("Aᵀ") else a
    right = b.T if layout.endswith("Bᵀ") else b
    result = torch.empty_like(a)
    return lambda: torch.mm(left, right, out=result)
