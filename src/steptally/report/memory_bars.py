"""Memory by rank and lifetime, and through a step: data of the pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from steptally.tally import MemoryMomentRow, MemoryRow, Tally

LIFETIMES = ("resident", "iteration", "microbatch", "transient", "outside")
MEANING = {
    "resident": "parameters and optimizer state",
    "iteration": "gradient buffers",
    "microbatch": "activations, from forward to backward",
    "transient": "logits, workspaces, communication, one layer's temporaries",
    "outside": "driver, context, NCCL, the allocator's reserve",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBar:
    """Bytes of one rank by lifetime, in the order of `LIFETIMES`."""

    rank: int
    pp: int | None
    sizes: tuple[int, ...]


def memory_bars(tally: Tally) -> list[MemoryBar]:
    """A bar for each rank whose rows are what is alive at its peak; none where they are not."""
    rows = [row for row in tally.accounts.get("memory", ()) if isinstance(row, MemoryRow)]
    sizes: dict[tuple[int, int | None], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        if row.peak_bytes is not None and row.lifetime in LIFETIMES:
            sizes[row.rank, row.pp][row.lifetime] += row.bytes
    return [
        MemoryBar(rank=rank, pp=pp, sizes=tuple(found[lifetime] for lifetime in LIFETIMES))
        for (rank, pp), found in sizes.items()
    ]


def memory_moments(tally: Tally) -> list[MemoryMomentRow]:
    """The events of the one rank that has a timeline, in order."""
    return [
        row for row in tally.accounts.get("memory_timeline", ()) if isinstance(row, MemoryMomentRow)
    ]


def columns(moments: Sequence[MemoryMomentRow], width: int) -> list[tuple[int, int]]:
    """(held, peak) of each of `width` columns: the highest of the events that share it.

    Fewer events than columns are widened.
    """
    count = len(moments)
    found = []
    for column in range(width):
        first = column * count // width
        last = max(first + 1, (column + 1) * count // width)
        shared = moments[first:last]
        held = max(min(one.before_bytes, one.peak_bytes) for one in shared)
        found.append((held, max(one.peak_bytes for one in shared)))
    return found
