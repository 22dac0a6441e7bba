"""When each member came to a transfer: times that the ranks of one host leave each other in files.

The monotonic clock is one for all processes of a host, and a mapped file costs no message.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_REMEMBERED = 4096  # transfers: more than a group has in flight
_NUMBER, _TIME = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The `number`-th transfer (from 1) of a group; `rows` is [member, (number, time in ns)]."""

    number: int
    rows: npt.NDArray[np.int64]

    def all_came(self) -> bool:
        """Whether every member has come to it."""
        return bool((self.rows[:, _NUMBER] >= self.number).all())

    def last_came_ns(self) -> int:
        """When the last of those that have come did."""
        came = self.rows[:, _NUMBER] == self.number
        return int(self.rows[came, _TIME].max(initial=0))


class Stamps:
    """Every rank makes one of the same `folder`, which must be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[str, npt.NDArray[np.int64]] = {}
        self._numbers: Counter[str] = Counter()

    def come(self, name: str, members: int, place: int) -> Transfer:
        """Say that the member at `place` comes to the next transfer of the group `name` now."""
        if name not in self._tables:
            self._tables[name] = _table(self._folder / name, members)
        self._numbers[name] += 1
        number = self._numbers[name]
        rows = self._tables[name][number % _REMEMBERED]
        rows[place, _TIME] = time.perf_counter_ns()
        rows[place, _NUMBER] = number  # last: who sees it finds the time
        return Transfer(number=number, rows=rows)


def _table(path: Path, members: int) -> npt.NDArray[np.int64]:
    """The shared table of a group, [transfer, member, (number, time)]; zeros until written."""
    shape = (_REMEMBERED, members, 2)
    with path.open("ab") as file:
        file.truncate(int(np.prod(shape)) * np.dtype(np.int64).itemsize)
    return np.memmap(path, dtype=np.int64, mode="r+", shape=shape)
