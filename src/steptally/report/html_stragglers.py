"""The geometry of a search for stragglers on the HTML page: heat maps, waits, the replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from steptally.report.heat_map import (
    AS_PEERS,
    NO_PEERS,
    HeatCell,
    HeatMap,
    marked,
    with_columns,
)
from steptally.report.html_charts import Mark, Plot, Segment, place, step_ticks, ticks, with_margin
from steptally.report.peer_maps import peer_maps
from steptally.report.quantity import duration
from steptally.report.step_points import thinned
from steptally.report.verdict_cards import times
from steptally.tally import ReplayRow, Tally, WaitRow

MOST_ROWS = 128
MOST_COLUMNS = 150
MOST_OPERATIONS = 24
# Up to so many columns, cells have their ratio as text and columns their whole names.
MOST_NUMBERED = 12
# Of a map of more cells, those as their peers' are one background without words of their own.
MOST_CELLS_WITH_WORDS = 4_000
MOST_BARS = 64
MOST_POINTS = 200
ROW_HEIGHT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatBox:
    """One cell: `x` and `width` in percent, `y` in px; `look` is its class in the style sheet."""

    look: str
    x: float
    y: int
    width: float
    text: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatChart:
    """One heat map; `names` are (percent, width, text, whole name) of its columns."""

    title: str
    note: str
    heads: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    height: int
    boxes: tuple[HeatBox, ...]
    names: tuple[tuple[float, float, str, str], ...]
    key: str
    worst: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBar:
    """What one rank spent in collectives, as parts of the most that any rank spent."""

    rank: int
    segments: tuple[Segment, ...]
    whole: str
    last_to_enter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitChart:
    """The bars of all ranks shown; `legend` is (look, name) of each part."""

    lines: tuple[WaitBar, ...]
    legend: tuple[tuple[str, str], ...]
    left_out: int


def heat_charts(tally: Tally) -> list[HeatChart]:
    """A chart for each heat map of the account `peers`."""
    return [_chart(heat) for heat in peer_maps(tally, most_rows=MOST_ROWS)]


def _chart(heat: HeatMap) -> HeatChart:
    heat = with_columns(heat, MOST_COLUMNS if heat.ordinal else MOST_OPERATIONS)
    count, dense = len(heat.columns), len(heat.columns) * len(heat.labels) > MOST_CELLS_WITH_WORDS
    notes = [heat.note]
    if heat.left_out:
        notes.append(f"{heat.left_out} operations that differ less are left out")
    if dense:
        notes.append("cells that are as their peers' have no words of their own")
    return HeatChart(
        title=heat.title,
        note="; ".join(notes),
        heads=heat.heads,
        labels=heat.labels,
        height=ROW_HEIGHT * len(heat.labels),
        boxes=tuple(
            _box(cell, row, column, count)
            for row, cells in enumerate(heat.cells)
            for column, cell in enumerate(cells)
            if cell is not None and not (dense and cell.level == AS_PEERS)
        ),
        names=_names(heat),
        key=_key(heat),
        worst=tuple(cell.words for _, _, cell in marked(heat)),
    )


def _box(cell: HeatCell, row: int, column: int, count: int) -> HeatBox:
    numbered = count <= MOST_NUMBERED and cell.ratio is not None and cell.level != AS_PEERS
    return HeatBox(
        look="heat-none" if cell.level == NO_PEERS else f"heat-{cell.level}",
        x=round(100 * column / count, 3),
        y=ROW_HEIGHT * row,
        width=round(100 / count, 3),
        text=times(cell.ratio) if numbered and cell.ratio is not None else "",
        words=cell.words,
    )


def _names(heat: HeatMap) -> tuple[tuple[float, float, str, str], ...]:
    """Names beneath the columns: all where there is room, letters of operations, some of many."""
    count = len(heat.columns)
    width = round(100 / count, 3)
    stride = 1 if not heat.ordinal else -(-count // MOST_NUMBERED)
    lettered = not heat.ordinal and count > MOST_NUMBERED
    texts = [ascii_lowercase[at] if lettered else name for at, name in enumerate(heat.columns)]
    if heat.ordinal:
        texts[0] = f"{heat.across} {texts[0]}"
    return tuple(
        (round(100 * at / count, 3), width * stride, texts[at], name)
        for at, name in enumerate(heat.columns)
        if at % stride == 0
    )


def _key(heat: HeatMap) -> str:
    if heat.ordinal or len(heat.columns) <= MOST_NUMBERED:
        return ""
    return ", ".join(
        f"{letter} {name}" for letter, name in zip(ascii_lowercase, heat.columns, strict=False)
    )


# (look, name) of the parts of a rank's time in collectives.
_EXPOSED = (("exposed-1", "exposed wait"), ("exposed-2", "exposed transfer"))
_HIDDEN = (("idle", "wait and transfer that compute hides"),)
_UNTOLD = (("exposed-1", "wait"), ("exposed-2", "transfer"))


def wait_chart(tally: Tally) -> WaitChart | None:
    """A bar a rank, over all its groups; of too many, those that wait most and least."""
    by_rank: dict[int, list[WaitRow]] = defaultdict(list)
    for row in tally.accounts.get("waits", ()):
        if isinstance(row, WaitRow):
            by_rank[row.rank].append(row)
    if not by_rank:
        return None
    told = all(
        row.exposed_wait_ns is not None and row.exposed_transfer_ns is not None
        for rows in by_rank.values()
        for row in rows
    )
    legend = (*_EXPOSED, *_HIDDEN) if told else _UNTOLD
    parts = {rank: _wait_parts(rows, told=told) for rank, rows in by_rank.items()}
    longest = max(max(sum(found) for found in parts.values()), 1)
    kept = _most_and_least(parts)
    return WaitChart(
        lines=tuple(_wait_bar(rank, by_rank[rank], parts[rank], legend, longest) for rank in kept),
        legend=legend,
        left_out=len(parts) - len(kept),
    )


def _wait_parts(rows: Sequence[WaitRow], *, told: bool) -> tuple[int, ...]:
    wait, transfer = sum(row.wait_ns for row in rows), sum(row.transfer_ns for row in rows)
    if not told:
        return wait, transfer
    exposed = sum(row.exposed_wait_ns or 0 for row in rows)
    moved = sum(row.exposed_transfer_ns or 0 for row in rows)
    return exposed, moved, max(0, wait + transfer - exposed - moved)


def _most_and_least(parts: dict[int, tuple[int, ...]]) -> list[int]:
    if len(parts) <= MOST_BARS:
        return sorted(parts)
    by_wait = sorted(parts, key=lambda rank: parts[rank][0])
    return sorted(by_wait[: MOST_BARS // 2] + by_wait[-MOST_BARS // 2 :])


def _wait_bar(
    rank: int,
    rows: Sequence[WaitRow],
    parts: tuple[int, ...],
    legend: Sequence[tuple[str, str]],
    longest: int,
) -> WaitBar:
    starts = [sum(parts[:at]) for at in range(len(parts))]
    last, of = sum(row.last_to_enter for row in rows), sum(row.instances for row in rows)
    return WaitBar(
        rank=rank,
        segments=tuple(
            Segment(
                look=look,
                x=round(100 * start / longest, 3),
                width=round(100 * part / longest, 3),
                words=f"{name}: {duration(part)}",
            )
            for (look, name), start, part in zip(legend, starts, parts, strict=True)
        ),
        whole=duration(sum(parts)),
        last_to_enter=f"last in {last:,} of {of:,}",
    )


def replay_plot(tally: Tally) -> Plot | None:
    """Each step as measured, replayed and ideal, from zero, so that lost time is to scale."""
    found = [row for row in tally.accounts.get("replay", ()) if isinstance(row, ReplayRow)]
    if not found:
        return None
    rows = thinned(sorted(found, key=lambda row: row.step), MOST_POINTS)
    _, high = with_margin(0, max(max(row.measured_ns, row.replayed_ns) for row in rows))
    first, last = rows[0].step, rows[-1].step
    return Plot(
        note="replayed from recorded durations and launch delays; ideal: every duration that of "
        "its peers; what lies between is the lost time",
        marks=tuple(
            Mark(
                look=look,
                x=place(row.step, first, last),
                y=100 - place(time_ns, 0, high),
                words=f"step {row.step}, {look}: {duration(time_ns)}",
            )
            for row in rows
            for look, time_ns in (
                ("measured", row.measured_ns),
                ("replayed", row.replayed_ns),
                ("ideal", row.ideal_ns),
            )
        ),
        joined="",
        x_ticks=step_ticks(first, last),
        y_ticks=tuple((100 - place(tick, 0, high), duration(tick)) for tick in ticks(0, high, 4)),
        looks=("measured", "replayed", "ideal"),
    )
