"""A heat map of own times over those of peers, which the terminal and the HTML page only draw.

A cell that stands for several ranks, steps or places shows the slowest of them: a map is there to
find who is late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from steptally.report.quantity import duration
from steptally.report.verdict_cards import times

# Upper ends of the levels; the last level has none. The second is "as its peers".
LEVEL_ENDS = (0.95, 1.05, 1.10, 1.25, 1.50)
AS_PEERS = 1
NO_PEERS = -1
MOST_MARKED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One rank's own time in one thing over its peers'; `ratio` is None where it has no peers.

    `others` names what stands for peers.
    """

    place: str
    of: str
    own_ns: int
    peers_ns: int | None
    ratio: float | None
    others: str = "its peers'"

    @property
    def level(self) -> int:
        """0 for less than its peers, `AS_PEERS`, then more and more; `NO_PEERS`."""
        return NO_PEERS if self.ratio is None else level(self.ratio)

    @property
    def excess_ns(self) -> int:
        """Own time less that of peers; 0 where there are none."""
        return 0 if self.peers_ns is None else self.own_ns - self.peers_ns

    @property
    def words(self) -> str:
        """The cell as a sentence, with its numbers."""
        where = f"{self.place}, {self.of}"
        if self.ratio is None or self.peers_ns is None:
            return f"{where}: {duration(self.own_ns)}, no peers to hold it against"
        against = f"{duration(self.own_ns)} against {duration(self.peers_ns)}"
        return f"{where}: {times(self.ratio)} {self.others} time, {against}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Rows of cells under `columns`, which are values of `across`; None where nothing was recorded.

    `heads` are the headings of each row's `labels`. `ordinal` columns (steps, places of an axis)
    may be drawn several in one; others are left out where there is no room, and counted in
    `left_out`.
    """

    title: str
    note: str
    heads: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    across: str
    columns: tuple[str, ...]
    cells: tuple[tuple[HeatCell | None, ...], ...]
    ordinal: bool
    left_out: int = 0


def level(ratio: float) -> int:
    """0 for less than the peers' time, `AS_PEERS` for about theirs, then more and more.

    >>> level(0.9), level(1.0), level(1.2), level(7.0)
    (0, 1, 3, 5)
    """
    return sum(ratio > end for end in LEVEL_ENDS)


def slowest(cells: Sequence[HeatCell | None]) -> HeatCell | None:
    """The cell of the largest ratio; one without peers only where no other is there."""
    known = [cell for cell in cells if cell is not None]
    return max(
        known, key=lambda cell: -1.0 if cell.ratio is None else max(cell.ratio, 0.0), default=None
    )


def with_columns(heat: HeatMap, most: int) -> HeatMap:
    """The map in at most `most` columns: joined where they have an order, else the telling ones."""
    if len(heat.columns) <= most:
        return heat
    if heat.ordinal:
        return _joined_columns(heat, max(most, 1))
    return _telling_columns(heat, max(most, 1))


def with_rows(heat: HeatMap, most: int) -> HeatMap:
    """The map in at most `most` rows, neighbours joined. Its rows must have one label each."""
    if len(heat.labels) <= most:
        return heat
    shares = list(chunks(len(heat.labels), most))
    return replace(
        heat,
        labels=tuple((_span([heat.labels[at][0] for at in share]),) for share in shares),
        cells=tuple(
            tuple(slowest(column) for column in zip(*(heat.cells[at] for at in share), strict=True))
            for share in shares
        ),
    )


def marked(heat: HeatMap, most: int = MOST_MARKED) -> list[tuple[int, int, HeatCell]]:
    """(row, column, cell) of the cells that lose most time to their peers, the most first.

    One of each place: the others of a slow rank lie beside it.
    """
    slow = [
        (row, column, cell)
        for row, cells in enumerate(heat.cells)
        for column, cell in enumerate(cells)
        if cell is not None and cell.level > AS_PEERS
    ]
    worst: dict[str, tuple[int, int, HeatCell]] = {}
    for found in sorted(slow, key=lambda one: -one[2].excess_ns):
        worst.setdefault(found[2].place, found)
    return list(worst.values())[:most]


def chunks(count: int, most: int) -> Iterator[range]:
    """Neighbours in at most `most` chunks of one size, the last one smaller.

    >>> list(chunks(5, 2)), list(chunks(0, 2))
    ([range(0, 3), range(3, 5)], [])
    """
    size = max(1, -(-count // most))
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def _joined_columns(heat: HeatMap, most: int) -> HeatMap:
    shares = list(chunks(len(heat.columns), most))
    return replace(
        heat,
        columns=tuple(_span([heat.columns[at] for at in share]) for share in shares),
        cells=tuple(
            tuple(slowest([row[at] for at in share]) for share in shares) for row in heat.cells
        ),
        note=f"{heat.note}; each column is the slowest of {len(shares[0])}",
    )


def _telling_columns(heat: HeatMap, most: int) -> HeatMap:
    def telling(at: int) -> int:
        return max(abs(row[at].excess_ns) if row[at] is not None else 0 for row in heat.cells)  # type: ignore[union-attr]

    kept = sorted(sorted(range(len(heat.columns)), key=telling, reverse=True)[:most])
    return replace(
        heat,
        columns=tuple(heat.columns[at] for at in kept),
        cells=tuple(tuple(row[at] for at in kept) for row in heat.cells),
        left_out=len(heat.columns) - len(kept),
    )


def _span(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}–{labels[-1]}"
