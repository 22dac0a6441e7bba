"""Which keys a query may look at, counted query by query."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Visible:
    """All keys before a query and its own, the last `window` of them, or those of its `block`."""

    window: int | None = None
    block: int | None = None

    def pairs(self, first: int, last: int, key_first: int, key_last: int) -> int:
        """Visible pairs of one head: queries `first` … `last` − 1, keys `key_first` … likewise.

        >>> Visible().pairs(0, 4, 0, 4), Visible(window=2).pairs(0, 4, 0, 4)
        (10, 7)
        """
        return _pairs(self.window, self.block, first, last, key_first, key_last)


@lru_cache(maxsize=65536)
def _pairs(
    window: int | None, block: int | None, first: int, last: int, key_first: int, key_last: int
) -> int:
    total = 0
    for query in range(first, last):
        earliest = 0 if block is None else query - query % block
        if window is not None:
            earliest = max(earliest, query - window + 1)
        total += max(0, min(query + 1, key_last) - max(earliest, key_first))
    return total
