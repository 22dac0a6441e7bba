"""The fastest matrix product of this machine, per dtype.

A linear layer multiplies in three operand layouts: forward A·Bᵀ, gradient of the input A·B,
gradient of the weight Aᵀ·B. Kernels differ by layout (15 times in bf16 on a CPU without bf16
instructions), so that the peak is the best over layouts and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from steptally.job.calibration import Samples
from steptally.run.sampling import REPETITIONS, sample_times

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Edges of square products, the smallest first: each tells how long the next will take.
SIZES_CPU = (256, 512, 1024, 2048, 4096)
SIZES_CUDA = (2048, 4096, 8192, 16384)
LAYOUTS = ("A·Bᵀ", "A·B", "Aᵀ·B")
CASE_BUDGET_S = 0.5


def matmul_rates(dtype: str, *, on_cuda: bool) -> list[Samples]:
    """FLOP/s of n × n products of one dtype (`fp32`, `bf16`, `fp16`), one entry a size and layout.

    2·n³ FLOPs a product. A size that would take longer than the budget of a case is left out.
    """
    return [
        Samples(
            quantity=f"matmul {dtype}",
            case=f"n = {size}, {layout}",
            unit="FLOP/s",
            samples=tuple(2 * size**3 / time_s for time_s in times_s),
        )
        for layout in LAYOUTS
        for size, times_s in _times_of_sizes(dtype, layout, on_cuda)
    ]


def _times_of_sizes(dtype: str, layout: str, on_cuda: bool) -> Iterator[tuple[int, list[float]]]:
    expected_s = 0.0
    previous = 0
    for size in SIZES_CUDA if on_cuda else SIZES_CPU:
        if previous:
            expected_s *= (size / previous) ** 3
        # The first call warms up, the second sizes the samples.
        if expected_s * (REPETITIONS + 2) > CASE_BUDGET_S:
            return
        times_s = sample_times(
            _product(dtype, layout, size, on_cuda), budget_s=CASE_BUDGET_S, on_cuda=on_cuda
        )
        yield size, times_s
        expected_s, previous = min(times_s), size


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
