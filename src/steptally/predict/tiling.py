"""How a matrix product falls into tiles and waves on a device, and which dimensions it dislikes.

Rules of NVIDIA's "Matrix Multiplication Background User's Guide" (DU-09799-001, 2023): section 2.2
for alignment, 2.3 for the tiles that cuBLAS uses, 3.1 and 3.2 for tile and wave quantization.
Derived in docs/formulas/gemms.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

# Section 2.3, most efficient first; equal areas stand together.
TILES: tuple[tuple[int, int], ...] = (
    (256, 128),
    (128, 256),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
)
# Section 2.2: dimensions should be multiples of this many bytes; A100 (8.0) prefers more.
ALIGNMENT_BYTES = 16
ALIGNMENT_BYTES_A100 = 128
TENSOR_CORE_BYTES: Mapping[str, float] = {
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "mxfp8": 1,
    "fp4": 0.5,
}
# Block-scaled formats need whole blocks along every dimension that is scaled (OCP MX: 32).
SCALING_BLOCK: Mapping[str, int] = {"mxfp8": 32, "fp4": 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """A product cut into `tiles` of tile[0] × tile[1] over all of its batch.

    `waves` = tiles / multiprocessors. `tail_efficiency` = waves / ⌈waves⌉: how full the waves are
    together. `tile_efficiency` is the part of the tiles' area that the result fills.
    """

    tile: tuple[int, int]
    tiles: int
    waves: float
    tail_efficiency: float
    tile_efficiency: float


def tile_product(m: int, n: int, batch: int, tile: tuple[int, int], multiprocessors: int) -> Tiling:
    """Cut m × n results into one given tile: one a multiprocessor at a time, no split-K.

    >>> round(tile_product(192, 768, 1, (6, 128), 148).waves, 3)  # 32 × 6 tiles
    1.297
    """
    tiles = batch * ceil(m / tile[0]) * ceil(n / tile[1])
    waves = tiles / multiprocessors
    return Tiling(
        tile=tile,
        tiles=tiles,
        waves=waves,
        tail_efficiency=waves / ceil(waves),
        tile_efficiency=batch * m * n / (tiles * tile[0] * tile[1]),
    )


def choose_tiling(m: int, n: int, batch: int, multiprocessors: int) -> Tiling:
    """The largest tile that still gives every multiprocessor one; of two equal ones, the fuller.

    cuBLAS decides by its own heuristics, which no document states: this rule is steptally's, and
    the guide's reason for it (large tiles reuse more, small ones keep more multiprocessors busy).
    """
    best = None
    for tile in TILES:
        tiling = tile_product(m, n, batch, tile, multiprocessors)
        area = tile[0] * tile[1]
        if best is not None and area < best.tile[0] * best.tile[1] and best.waves >= 1:
            break
        if best is None or area < best.tile[0] * best.tile[1] or _fuller(tiling, best):
            best = tiling
    return best or tile_product(m, n, batch, TILES[-1], multiprocessors)


def misaligned(m: int, n: int, k: int, dtype: str, compute_capability: str = "") -> str:
    """The dimensions that tensor cores do not like, with the rule; empty where all are fine.

    >>> misaligned(2048, 33708, 1024, "fp16")
    'n 33708 (multiple of 8)'
    """
    if dtype not in TENSOR_CORE_BYTES:
        return ""
    unit = ALIGNMENT_BYTES_A100 if compute_capability == "8.0" else ALIGNMENT_BYTES
    multiple = max(int(unit / TENSOR_CORE_BYTES[dtype]), SCALING_BLOCK.get(dtype, 1))
    sizes = {"m": m, "n": n, "k": k}
    wrong = [f"{name} {size}" for name, size in sizes.items() if size % multiple]
    return f"{', '.join(wrong)} (multiple of {multiple})" if wrong else ""


def _fuller(tiling: Tiling, other: Tiling) -> bool:
    """Whether one of two tilings of equal tile area wastes less."""
    return (tiling.tile_efficiency, tiling.tail_efficiency) > (
        other.tile_efficiency,
        other.tail_efficiency,
    )
