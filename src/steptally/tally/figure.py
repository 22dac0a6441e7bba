"""One number that can be believed: with its basis, its unit, its convention and its origin."""

from __future__ import annotations

from dataclasses import dataclass

# The convention of a peak that torch's allocator tells: max_memory_allocated.
PEAK_ALLOCATED = "peak allocated on the device"
BASES = ("predicted", "rehearsed", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A scalar result.

    `basis` is `predicted`, `rehearsed` or `measured`; `unit` is spelled out (`FLOP`, `s`, `byte`,
    `token/s`, `1` for a ratio, `true or false`); `convention` names the choices behind it;
    `origin` says how it came to be: the formula, the file, the number of samples.
    """

    value: int | float | bool | str | None
    unit: str
    basis: str
    convention: str = ""
    origin: str = ""

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise ValueError(f"basis must be one of {BASES}, got {self.basis!r}")
