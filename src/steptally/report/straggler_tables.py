"""A search for stragglers as tables: what-ifs, replay, waits, collectives, clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any

from steptally.report.quantity import duration, printable, quantity, ranges
from steptally.report.table import NOTHING, Table
from steptally.report.verdict_cards import in_words
from steptally.tally import ClockRow, CollectiveRow, ReplayRow, Tally, WaitRow, WhatIfRow

# No report shows more rows: the text of a million collectives is not made.
MOST_TOLD = 200


def replay_table(rows: Sequence[ReplayRow]) -> Table:
    """Each step as measured, as replayed, and as it would be if all took what their peers take."""
    return Table(
        title="Replay of each step",
        note="replayed from recorded durations and launch delays; error: of a replay from "
        "durations alone; ideal: every duration that of its peers; S = replayed / ideal",
        columns=("step", "measured", "replayed", "error", "ideal", "lost", "S"),
        text_columns=0,
        least_wanted=("replayed",),
        rows=tuple(
            (
                str(row.step),
                *map(duration, (row.measured_ns, row.replayed_ns)),
                f"{100 * row.error:+.2f} %",
                duration(row.ideal_ns),
                duration(row.replayed_ns - row.ideal_ns),
                f"{row.slowdown:.3f}",
            )
            for row in rows[:MOST_TOLD]
        ),
        left_out=max(0, len(rows) - MOST_TOLD),
    )


def what_if_table(rows: Sequence[WhatIfRow]) -> Table:
    """What the step would be if one thing were as its peers, the most recovered first."""
    kept = nlargest(MOST_TOLD, rows, key=lambda row: row.recovered_ns)
    return Table(
        title="If one thing were as its peers",
        note="each alone, replayed; a step, and its share of the lost time; shares do not add up",
        columns=("mended", "which", "the step", "recovered", "of the lost time"),
        text_columns=2,
        rows=tuple(
            (
                printable(row.what),
                _which(row),
                duration(row.mended_ns),
                duration(row.recovered_ns),
                NOTHING if row.share_recovered is None else quantity(row.share_recovered, "1"),
            )
            for row in kept
        ),
        left_out=len(rows) - len(kept),
    )


def _which(row: WhatIfRow) -> str:
    words = (in_words(row.coordinates), printable(row.operation))
    return ", ".join(word for word in words if word) or NOTHING


def wait_table(rows: Sequence[WaitRow]) -> Table:
    """Waits of each rank over all groups; those that others wait for first."""
    by_rank: dict[int, list[WaitRow]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    ordered = sorted(by_rank.items(), key=lambda pair: (-_last(pair[1]), pair[0]))
    return Table(
        title="Waits of each rank",
        note="over the recording, all process groups added up: wait until the last member enters, "
        "then transfer; exposed is the part in which the rank computes nothing",
        columns=("rank", "last to enter", "collectives", *_PARTS),
        text_columns=0,
        least_wanted=("collectives", "transfer", "wait"),
        rows=tuple(
            (str(rank), f"{_last(found):,}", f"{_instances(found):,}", *_parts(found))
            for rank, found in ordered[:MOST_TOLD]
        ),
        left_out=max(0, len(ordered) - MOST_TOLD),
    )


def wait_group_table(rows: Sequence[WaitRow]) -> Table:
    """Waits of each process group over its ranks, the most waited in first."""
    by_group: dict[tuple[str, str], list[WaitRow]] = defaultdict(list)
    for row in rows:
        by_group[row.group, row.axis or NOTHING].append(row)
    ordered = sorted(by_group.items(), key=lambda pair: -sum(row.wait_ns for row in pair[1]))
    return Table(
        title="Waits in each process group",
        note="over the recording, the ranks named added up; most often last: the others wait for "
        "it",
        columns=("group", "axis", "ranks", "most often last", *_PARTS),
        text_columns=4,
        least_wanted=("transfer", "wait", "ranks"),
        rows=tuple(
            (
                printable(group),
                printable(axis),
                ranges(row.rank for row in found),
                _most_often_last(found),
                *_parts(found),
            )
            for (group, axis), found in ordered[:MOST_TOLD]
        ),
        left_out=max(0, len(ordered) - MOST_TOLD),
    )


_PARTS = ("wait", "exposed wait", "transfer", "exposed transfer")


def _parts(rows: Sequence[WaitRow]) -> tuple[str, ...]:
    return (
        duration(sum(row.wait_ns for row in rows)),
        _sum_of_known(row.exposed_wait_ns for row in rows),
        duration(sum(row.transfer_ns for row in rows)),
        _sum_of_known(row.exposed_transfer_ns for row in rows),
    )


def _sum_of_known(times_ns: Iterable[int | None]) -> str:
    """A sum in which one part is not known is not known."""
    known = list(times_ns)
    whole = [time_ns for time_ns in known if time_ns is not None]
    return duration(sum(whole)) if len(whole) == len(known) else NOTHING


def _last(rows: Sequence[WaitRow]) -> int:
    return sum(row.last_to_enter for row in rows)


def _instances(rows: Sequence[WaitRow]) -> int:
    return sum(row.instances for row in rows)


def _most_often_last(rows: Sequence[WaitRow]) -> str:
    worst = max(rows, key=lambda row: row.last_to_enter)
    if not worst.last_to_enter:
        return NOTHING
    return f"rank {worst.rank}: {worst.last_to_enter:,} of {worst.instances:,}"


def collective_table(rows: Sequence[CollectiveRow]) -> Table:
    """The collectives in which ranks waited most."""
    kept = nlargest(MOST_TOLD, rows, key=_waited)
    return Table(
        title="Collectives by wait",
        note="waited: all recorded members added up; enter skew: the first waited so long for the "
        "last; leave skew: how far apart they left",
        columns=(
            *("collective", "group", "axis", "last to enter"),
            *("step", "number", "size", "waited", "enter skew", "leave skew", "not recorded"),
        ),
        text_columns=4,
        least_wanted=("not recorded", "leave skew", "size", "axis", "number", "group"),
        rows=tuple(
            (
                printable(row.collective),
                printable(row.group),
                printable(row.axis or NOTHING),
                NOTHING if row.last_to_enter is None else f"rank {row.last_to_enter}",
                str(row.step),
                f"{row.sequence:,}",
                NOTHING if row.bytes is None else quantity(row.bytes, "byte"),
                *map(duration, (_waited(row), row.enter_skew_ns, row.leave_skew_ns)),
                f"{row.missing:,}" if row.missing else NOTHING,
            )
            for row in kept
        ),
        left_out=len(rows) - len(kept),
    )


def _waited(row: CollectiveRow) -> int:
    return sum(member.wait_ns for member in row.members)


def clock_table(rows: Sequence[ClockRow]) -> Table:
    """How each rank's clock was moved; no rows where none was, so that there is nothing to say."""
    moved = any(row.offset_ns or row.drift or row.bound_ns or not row.connected for row in rows)
    return Table(
        title="Clocks",
        note="common time = the rank's own + offset + drift since a reference time; a time may be "
        "off by the bound",
        columns=("rank", "on the common clock", "offset", "drift", "bound", "ends it rests on"),
        text_columns=2,
        least_wanted=("ends it rests on", "drift"),
        rows=tuple(map(_clock_line, rows[:MOST_TOLD])) if moved else (),
        left_out=max(0, len(rows) - MOST_TOLD) if moved else 0,
    )


def _clock_line(row: ClockRow) -> tuple[str, ...]:
    return (
        str(row.rank),
        "yes" if row.connected else "no: shares no collective",
        duration(row.offset_ns),
        f"{1e6 * row.drift:+.3g} µs/s",
        NOTHING if row.bound_ns is None else f"± {duration(row.bound_ns)}",
        f"{row.collectives:,}",
    )


_DRAWN: tuple[tuple[str, Callable[[Sequence[Any]], Table]], ...] = (
    ("what_if", what_if_table),
    ("replay", replay_table),
    ("waits", wait_table),
    ("waits", wait_group_table),
    ("collectives", collective_table),
    ("clock", clock_table),
)


def straggler_tables(tally: Tally) -> list[tuple[str, Table]]:
    """The tables of a search for stragglers, each with the account that it is of."""
    tables = []
    for account, draw in _DRAWN:
        rows = tally.accounts.get(account)
        table = draw(rows) if rows else None
        if table is not None and table.rows:
            tables.append((account, table))
    return tables
