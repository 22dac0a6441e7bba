"""Microseconds as profilers write them, to integer nanoseconds, without losing a digit."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import polars as pl

Nanoseconds = npt.NDArray[np.int64]

# Values that are no time become this; no clock reaches it (it is in the year 1677).
NO_TIME = np.iinfo(np.int64).min
_LARGEST_MICROSECONDS = 2**62 // 1000
_SMALL_MICROSECONDS = 2**40  # times 1000, still far from where doubles lose the unit


def nanoseconds(microseconds: Sequence[int | float | str | None]) -> Nanoseconds:
    """Microseconds, as numbers or decimal text, in nanoseconds; `NO_TIME` for anything else.

    Floats are split before they are scaled: 4458676522690.655 · 1000 is not a double's to hold,
    its fraction · 1000 is. That is exact up to 2⁴³ µs; larger decimals must come as text.

    >>> nanoseconds([4458676522690.655, 7, "1661203462598738.001"]).tolist()
    [4458676522690655, 7000, 1661203462598738001]
    """
    kinds = set(map(type, microseconds))
    if kinds == {int}:
        values = np.array(microseconds, dtype=np.float64)
        if _in_range(values):
            return np.array(microseconds, dtype=np.int64) * 1000
    elif kinds == {float} or kinds == {int, float}:
        values = np.array(microseconds, dtype=np.float64)
        if _in_range(values):
            return _of_floats(values)
    if kinds == {str}:
        return _of_texts(pl.Series(microseconds, dtype=pl.String))
    return np.array([_one(value) for value in microseconds], dtype=np.int64)


def _in_range(values: npt.NDArray[np.float64]) -> bool:
    return bool(values.min() > -_LARGEST_MICROSECONDS and values.max() < _LARGEST_MICROSECONDS)


def _of_floats(microseconds: npt.NDArray[np.float64]) -> Nanoseconds:
    if microseconds.min() > -_SMALL_MICROSECONDS and microseconds.max() < _SMALL_MICROSECONDS:
        return np.rint(microseconds * 1000).astype(np.int64)
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)


def _of_texts(microseconds: pl.Series) -> Nanoseconds:
    """Decimal texts, all at once: polars' decimals are integers underneath."""
    exact = microseconds.cast(pl.Decimal(38, 3), strict=False).to_physical()
    in_range = exact.is_between(-1000 * _LARGEST_MICROSECONDS, 1000 * _LARGEST_MICROSECONDS)
    return exact.set(~in_range.fill_null(False), None).cast(pl.Int64).fill_null(NO_TIME).to_numpy()


def _one(value: int | float | str | None) -> int:
    try:
        is_number = isinstance(value, str | int | float) and not isinstance(value, bool)
        exact = Decimal(value) if is_number else Decimal("nan")  # type: ignore[arg-type]
    except InvalidOperation:
        return NO_TIME
    if not exact.is_finite() or abs(exact) >= _LARGEST_MICROSECONDS:
        return NO_TIME
    return int((exact * 1000).to_integral_value())
