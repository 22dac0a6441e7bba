"""Which heat maps show a search's `peers`: ranks by operation, by step, or two axes of many ranks.

Selection and sums of rows only: who is a peer of whom was found before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import combinations

from steptally.report.heat_map import AS_PEERS, HeatCell, HeatMap, level, slowest, with_rows
from steptally.report.quantity import printable
from steptally.report.table import NOTHING
from steptally.report.verdict_cards import ordered, place_in_words
from steptally.tally import PeerRow, Tally, VerdictRow

# What a map's cells are over, by `PeerRow.against`: in its title, and in a cell's words.
OTHERS = {"peers": ("peers'", "its peers'"), "stages": ("the other stages'", "the other stages'")}
# So many ranks are shown of many that are all as their peers.
FEW = 8
_Place = Mapping[str, int]


def peer_maps(tally: Tally, *, most_rows: int) -> list[HeatMap]:
    """The maps of a tally's `peers`, each of at most `most_rows` rows; none without that account.

    Ranks are held against their peers, where any has some; against the other stages where none
    has, or where a stage is to blame.
    """
    rows = [row for row in tally.accounts.get("peers", ()) if isinstance(row, PeerRow)]
    against: dict[str, list[PeerRow]] = defaultdict(list)
    for row in rows:
        against[row.against].append(row)
    verdicts = [row for row in tally.accounts.get("verdicts", ()) if isinstance(row, VerdictRow)]
    blamed = any(row.verdict == "stage-imbalance" for row in verdicts)
    if all(row.ratio is None for row in against["peers"]) and against["stages"]:
        del against["peers"]
    elif not blamed:
        against.pop("stages", None)
    return [heat for kind in against.values() if kind for heat in _maps(kind, most_rows)]


def _maps(rows: Sequence[PeerRow], most_rows: int) -> list[HeatMap]:
    """Of more ranks than `most_rows`, the pair of axes that differs most is mapped, and then the
    ranks that are furthest from their peers."""
    if most_rows < 1:
        return []
    stepped = [row for row in rows if row.step is not None]
    medians = [row for row in rows if row.step is None] or stepped
    places = {row.rank: row.coordinates for row in rows}
    maps, shown, which = [], places, ""
    if len(places) > most_rows:
        maps.append(_axes_map(medians, places, most_rows))
        shown = {rank: places[rank] for rank in _furthest(rows, most_rows)}
        which = f"{len(shown)} of {len(places):,} ranks, the furthest from their peers; "
    maps.append(_operations_map(medians, shown, which))
    if len({row.step for row in stepped}) > 1:
        maps.append(_steps_map(stepped, shown, which))
    return maps


def _title(rows: Sequence[PeerRow]) -> str:
    return f"Own time over {OTHERS[rows[0].against][0]}"


def _operations_map(rows: Sequence[PeerRow], places: Mapping[int, _Place], which: str) -> HeatMap:
    operations = list(dict.fromkeys(row.operation for row in rows))
    every_step = all(row.step is None for row in rows)
    what = "the median over steps" if every_step else "all steps"
    return _ranks_map(
        rows,
        places,
        title=f"{_title(rows)}, by operation",
        note=f"{which}{what}",
        columns={name: printable(name) for name in operations},
        column_of=lambda row: row.operation,
        across="operation",
    )


def _steps_map(rows: Sequence[PeerRow], places: Mapping[int, _Place], which: str) -> HeatMap:
    steps = sorted({row.step for row in rows if row.step is not None})
    return _ranks_map(
        rows,
        places,
        title=f"{_title(rows)}, by step",
        note=f"{which}all operations together",
        columns={step: str(step) for step in steps},
        column_of=lambda row: row.step,
        across="step",
    )


def _ranks_map(
    rows: Sequence[PeerRow],
    places: Mapping[int, _Place],
    *,
    title: str,
    note: str,
    columns: Mapping[Hashable, str],
    column_of: Callable[[PeerRow], Hashable],
    across: str,
) -> HeatMap:
    """One row a rank, in the order of its coordinates."""
    found: dict[tuple[int, Hashable], list[PeerRow]] = defaultdict(list)
    for row in rows:
        if row.rank in places:
            found[row.rank, column_of(row)].append(row)
    axes = _varied(places.values())
    ranks = sorted(places, key=lambda rank: (*_order(places[rank], axes), rank))
    word = "step " if across == "step" else ""
    return HeatMap(
        title=title,
        note=note,
        heads=(*map(printable, axes), "rank"),
        labels=tuple(
            (*(str(places[rank].get(axis, NOTHING)) for axis in axes), str(rank)) for rank in ranks
        ),
        across=across,
        columns=tuple(columns.values()),
        cells=tuple(
            tuple(
                _cell(found[rank, key], places[rank], word + name) if (rank, key) in found else None
                for key, name in columns.items()
            )
            for rank in ranks
        ),
        ordinal=across == "step",
    )


def _axes_map(rows: Sequence[PeerRow], places: Mapping[int, _Place], most_rows: int) -> HeatMap:
    """Two axes against each other; a cell is the slowest of the ranks that share both places."""
    totals = _totals(rows, places)
    down, along = _pair_of_most_contrast(totals, places)
    found: dict[tuple[int | None, int | None], list[HeatCell | None]] = defaultdict(list)
    for rank, cell in totals.items():
        found[_at(down, rank, places), _at(along, rank, places)].append(cell)
    lines = sorted({line for line, _ in found}, key=_unknown_last)
    columns = sorted({column for _, column in found}, key=_unknown_last)
    name = f"{printable(down)} × {printable(along)}" if down else f"by {printable(along)}"
    heat = HeatMap(
        title=f"{_title(rows)}, {name}",
        note=f"all {len(places):,} ranks, all operations together; a cell is the slowest of its "
        "ranks" + ("; of all pairs of axes, these two differ most" if down else ""),
        heads=(printable(down) or "ranks",),
        labels=tuple((NOTHING if line is None else str(line),) for line in lines),
        across=printable(along),
        columns=tuple(NOTHING if column is None else str(column) for column in columns),
        cells=tuple(
            tuple(slowest(found.get((line, column), ())) for column in columns) for line in lines
        ),
        ordinal=True,
    )
    return with_rows(heat, most_rows)


def _pair_of_most_contrast(
    totals: Mapping[int, HeatCell], places: Mapping[int, _Place]
) -> tuple[str, str]:
    """(axis of the rows, axis of the columns): fewer places down, more along.

    One axis alone, or the rank itself, stands along. Contrast is how much of the variance of the
    ranks' log ratios lies between the places of the pair.
    """
    axes = _varied(places.values())
    if len(axes) < 2:
        return "", axes[0] if axes else "rank"
    logs = {
        rank: math.log(cell.ratio)
        for rank, cell in totals.items()
        if cell.ratio and 0 < cell.ratio < math.inf
    }

    def contrast(pair: tuple[str, str]) -> float:
        groups: dict[tuple[int | None, ...], list[float]] = defaultdict(list)
        for rank, log in logs.items():
            groups[tuple(places[rank].get(axis) for axis in pair)].append(log)
        mean = sum(logs.values()) / max(len(logs), 1)
        return sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())

    first, second = max(combinations(axes, 2), key=contrast)
    sizes = {axis: len({place.get(axis) for place in places.values()}) for axis in (first, second)}
    return (first, second) if sizes[first] <= sizes[second] else (second, first)


def _totals(rows: Sequence[PeerRow], places: Mapping[int, _Place]) -> dict[int, HeatCell]:
    by_rank: dict[int, list[PeerRow]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    return {rank: _cell(found, places[rank], "all operations") for rank, found in by_rank.items()}


def _furthest(rows: Sequence[PeerRow], most: int) -> list[int]:
    """The ranks that differ most from their peers, by the largest difference in ns.

    Where any differ notably, those alone: the others show what is as it should be.
    """
    excess: dict[int, int] = defaultdict(int)
    notable = set()
    for row in rows:
        if row.peers_ns is None or row.ratio is None:
            continue
        excess[row.rank] = max(excess[row.rank], abs(row.own_ns - row.peers_ns))
        if level(row.ratio) != AS_PEERS:
            notable.add(row.rank)
    ranks = notable or excess.keys() or {row.rank for row in rows}
    return sorted(ranks, key=lambda rank: (-excess[rank], rank))[: most if notable else FEW]


def _cell(rows: Sequence[PeerRow], place: _Place, of: str) -> HeatCell:
    """One row as it is; of several, the sums of those that have peers."""
    where = place_in_words(place, (rows[0].rank,))
    others = OTHERS[rows[0].against][1]
    if len(rows) == 1:
        (row,) = rows
        known = row.ratio is not None and row.peers_ns is not None
        return HeatCell(
            place=where,
            of=of,
            own_ns=row.own_ns,
            peers_ns=row.peers_ns if known else None,
            ratio=row.ratio if known else None,
            others=others,
        )
    pairs = [(row.own_ns, row.peers_ns) for row in rows if row.peers_ns is not None]
    peers_ns = sum(peers for _, peers in pairs)
    if not peers_ns:
        own_ns = sum(row.own_ns for row in rows)
        return HeatCell(place=where, of=of, own_ns=own_ns, peers_ns=None, ratio=None, others=others)
    own_ns = sum(own for own, _ in pairs)
    ratio = own_ns / peers_ns
    return HeatCell(
        place=where, of=of, own_ns=own_ns, peers_ns=peers_ns, ratio=ratio, others=others
    )


def _varied(places: Collection[_Place]) -> list[str]:
    """The axes along which ranks differ: what all share tells no row from another."""
    axes = {axis for place in places for axis in place}
    return ordered([axis for axis in axes if len({place.get(axis) for place in places}) > 1])


def _order(place: _Place, axes: Sequence[str]) -> list[tuple[bool, int]]:
    return [_unknown_last(place.get(axis)) for axis in axes]


def _unknown_last(number: int | None) -> tuple[bool, int]:
    return number is None, number or 0


def _at(axis: str, rank: int, places: Mapping[int, _Place]) -> int | None:
    if not axis:
        return None
    return rank if axis == "rank" and axis not in places[rank] else places[rank].get(axis)
