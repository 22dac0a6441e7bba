"""Microseconds as profilers write them, to integer nanoseconds, without losing a digit."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

Nanoseconds = npt.NDArray[np.int64]

# Values that are no time become this; no clock reaches it (it is in the year 1677).
NO_TIME = np.iinfo(np.int64).min
_LARGEST_MICROSECONDS = 2**62 // 1000


def nanoseconds(microseconds: Sequence[int | float | str | None]) -> Nanoseconds:
    """Microseconds, as numbers or decimal text, in nanoseconds; `NO_TIME` for anything else.

    Floats are split before they are scaled: 4458676522690.655 · 1000 is not a double's to hold,
    its fraction · 1000 is. That is exact up to 2⁴³ µs; larger decimals must come as text.

    >>> nanoseconds([4458676522690.655, 7, "1661203462598738.001"]).tolist()
    [4458676522690655, 7000, 1661203462598738001]
    """
    kinds = set(map(type, microseconds))
    if kinds <= {int, float}:
        values = np.array(microseconds, dtype=np.float64)
        if np.all(np.abs(values) < _LARGEST_MICROSECONDS):
            if float not in kinds:
                return np.array(microseconds, dtype=np.int64) * 1000
            whole = np.floor(values)
            fraction = np.rint((values - whole) * 1000)
            return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
    return np.array([_one(value) for value in microseconds], dtype=np.int64)


def _one(value: int | float | str | None) -> int:
    try:
        exact = Decimal(value) if isinstance(value, str | int | float) else Decimal("nan")
    except InvalidOperation:
        return NO_TIME
    if not exact.is_finite() or abs(exact) >= _LARGEST_MICROSECONDS:
        return NO_TIME
    return int((exact * 1000).to_integral_value())
