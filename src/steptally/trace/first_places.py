"""Where numbers stand first in a column: what links work to the call with the same correlation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Int64s = npt.NDArray[np.int64]

NOWHERE = -1
# A table with this many entries for each number is still cheaper than sorting the numbers.
_MOST_EMPTY = 16


def first_places(numbers: pl.Series, wanted: pl.Series) -> Int64s:
    """The first place of each of `wanted` in `numbers`; `NOWHERE` for what is not among them.

    Both are never negative. Null is no number, and nowhere.

    >>> first_places(pl.Series([7, 5, 7, None]), pl.Series([7, 6, None])).tolist()
    [0, -1, -1]
    """
    there, sought = numbers.fill_null(-1).to_numpy(), wanted.fill_null(-2).to_numpy()
    if not there.size or not sought.size:
        return np.full(sought.size, NOWHERE)
    low, high = int(there.min()), int(there.max())
    if high - low >= _MOST_EMPTY * (there.size + sought.size):
        return _searched(there, sought)
    first = np.full(high - low + 1, NOWHERE)
    # Of equal numbers the one written last stays: so from the end.
    first[there[::-1] - low] = np.arange(there.size - 1, -1, -1)
    inside = (sought >= low) & (sought <= high)
    return np.where(inside, first[np.where(inside, sought - low, 0)], NOWHERE)


def _searched(there: Int64s, sought: Int64s) -> Int64s:
    """The same by sorting, for numbers that are far apart."""
    distinct, first = np.unique(there, return_index=True)
    place = np.minimum(np.searchsorted(distinct, sought), distinct.size - 1)
    return np.where(distinct[place] == sought, first[place], NOWHERE)
