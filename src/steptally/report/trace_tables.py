"""The accounts of traces as tables: recordings, groups, steps, gaps, kernels, contention, trust."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from steptally.report.kernel_tables import (
    contention_table,
    family_table,
    fusion_table,
    gap_table,
    kernel_table,
    net_gain_table,
)
from steptally.report.quantity import duration, printable, ranges, share
from steptally.report.table import NOTHING, Table
from steptally.tally import GroupTime, Tally, TimeRow, TrustRow

NOT_APPLICABLE = "not applicable"
# communication, overlap, exposed, hidden
_NO_COMMUNICATION = ("none", NOTHING, NOTHING, NOT_APPLICABLE)


def trace_tables(tally: Tally) -> list[tuple[str, Table]]:
    """The tables of a tally that holds traces, each with the account that it is of."""
    tables = []
    for account, draw in _DRAWN:
        rows = tally.accounts.get(account)
        table = draw(rows) if rows else None
        if table is not None and table.rows:
            tables.append((account, table))
    if "recording" in tally.accounts:  # a run's report draws its steps as bars
        rows = [*tally.accounts.get("partial_steps", ()), *tally.accounts.get("time", ())]
        if rows:
            table = step_table([row for row in rows if isinstance(row, TimeRow)])
            tables.insert(1, ("time", table))
    return tables


def recording_table(rows: Sequence[TimeRow]) -> Table:
    """Where the whole recording of each rank went."""
    return Table(
        title="Recordings",
        note="span = compute + exposed communication + idle + copies alone; hidden is the part of "
        "communication that compute overlaps",
        columns=("rank", *_SHARES),
        text_columns=0,
        least_wanted=("copies", "busy", "overlap"),
        rows=tuple((str(row.rank), *_shares(row)) for row in rows),
    )


_SHARES = ("span", "busy", "compute", "communication", "overlap", "exposed", "hidden", "idle",
           "copies")  # fmt: skip


def _shares(row: TimeRow) -> tuple[str, ...]:
    communicates = (
        *map(duration, (row.communication_ns, row.overlap_ns, row.exposed_ns)),
        share(row.overlap_ns, row.communication_ns),
    )
    return (
        *map(duration, (row.span_ns, row.busy_ns, row.compute_ns)),
        *(communicates if row.communication_ns else _NO_COMMUNICATION),
        duration(row.idle_ns),
        duration(row.copies_ns),
    )


def group_table(rows: Sequence[TimeRow]) -> Table:
    """Communication by process group: means over the ranks that are in it, and the worst of them.

    A group of one name is another group for each of its members: ranks in words.
    """
    by_name: dict[tuple[str, str], list[tuple[int, GroupTime]]] = defaultdict(list)
    for row in rows:
        for group in row.groups:
            by_name[group.group, group.axis or ""].append((row.rank, group))
    ordered = sorted(by_name.items(), key=lambda pair: -sum(g.exposed_ns for _, g in pair[1]))
    return Table(
        title="Communication by process group",
        note="over the whole recording, the mean of the ranks named; alone is exposed while no "
        "other group communicates",
        columns=(
            *("group", "axis", "ranks", "most exposed", "size", "collectives"),
            *("communication", "exposed", "alone", "hidden"),
        ),
        text_columns=4,
        least_wanted=("most exposed", "size", "alone", "collectives", "ranks"),
        rows=tuple(_group_line(name, axis, found) for (name, axis), found in ordered),
    )


def _group_line(name: str, axis: str, found: Sequence[tuple[int, GroupTime]]) -> tuple[str, ...]:
    groups = [group for _, group in found]
    sizes = {group.size for group in groups if group.size}
    worst = max(found, key=lambda pair: pair[1].exposed_ns)

    def mean(total_ns: int) -> str:
        return duration(total_ns / len(groups))

    communication_ns = sum(group.communication_ns for group in groups)
    return (
        printable(name),
        printable(axis or NOTHING),
        ranges(rank for rank, _ in found),
        f"rank {worst[0]}: {duration(worst[1].exposed_ns)}" if len(found) > 1 else NOTHING,
        ranges(sizes) if sizes else NOTHING,
        f"{sum(group.instances for group in groups):,}",
        mean(communication_ns),
        mean(sum(group.exposed_ns for group in groups)),
        mean(sum(group.exposed_alone_ns for group in groups)),
        share(sum(group.overlap_ns for group in groups), communication_ns),
    )


def pair_table(rows: Sequence[TimeRow]) -> Table:
    """Which groups communicate at the same time."""
    pairs: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        for pair in row.pairs:
            pairs[pair.groups] += pair.overlap_ns
    return Table(
        title="Groups that communicate at once",
        note="sum over the ranks' recordings",
        columns=("group", "and", "overlap"),
        text_columns=2,
        rows=tuple(
            (printable(one), printable(other), duration(overlap_ns))
            for (one, other), overlap_ns in sorted(pairs.items(), key=lambda pair: -pair[1])
        ),
    )


def step_table(rows: Sequence[TimeRow]) -> Table:
    """Each step over its ranks: the mean, and partial ones with what makes them so."""
    by_step: dict[tuple[int, str], list[TimeRow]] = defaultdict(list)
    for row in rows:
        by_step[row.step, row.partial].append(row)
    return Table(
        title="Steps",
        note="the work launched in each step, the mean of the ranks named",
        columns=("step", "ranks", "span", "compute", "communication", "exposed", "hidden", "idle"),
        text_columns=2,
        least_wanted=("communication",),
        rows=tuple(
            _step_line(step, partial, by_step[step, partial]) for step, partial in sorted(by_step)
        ),
    )


def _step_line(step: int, partial: str, rows: Sequence[TimeRow]) -> tuple[str, ...]:
    def mean(total_ns: int) -> str:
        return duration(total_ns / len(rows))

    communication_ns = sum(row.communication_ns for row in rows)
    none, _, no_exposed, no_hidden = _NO_COMMUNICATION
    communicates = (none, no_exposed, no_hidden)
    if communication_ns:
        communicates = (
            mean(communication_ns),
            mean(sum(row.exposed_ns for row in rows)),
            share(sum(row.overlap_ns for row in rows), communication_ns),
        )
    return (
        printable(partial or str(step)),
        ranges(row.rank for row in rows),
        mean(sum(row.span_ns for row in rows)),
        mean(sum(row.compute_ns for row in rows)),
        *communicates,
        mean(sum(row.idle_ns for row in rows)),
    )


def trust_table(rows: Sequence[TrustRow]) -> Table:
    """Tests that found something; those of several ranks that found the same are one line."""
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in rows:
        if row.verdict != "good":
            key = (row.check, row.verdict, row.finding, row.affects or NOTHING)
            same[key] += [row.rank] if row.rank is not None else []
    checks = len({row.check for row in rows})
    return Table(
        title="Trust",
        note=f"what {checks} tests of the recordings found; those not named found nothing",
        columns=("test", "ranks", "verdict", "finding", "affects"),
        text_columns=5,
        least_wanted=(),
        rows=tuple(
            (printable(check), ranges(ranks) or "all", verdict, printable(finding), printable(what))
            for (check, verdict, finding, what), ranks in same.items()
        ),
    )


_DRAWN: tuple[tuple[str, Callable[[Sequence[Any]], Table]], ...] = (
    ("recording", recording_table),
    ("recording", group_table),
    ("recording", pair_table),
    ("gaps", gap_table),
    ("net_gain", net_gain_table),
    ("contention", contention_table),
    ("kernel_families", family_table),
    ("kernels", kernel_table),
    ("fusion", fusion_table),
    ("trust", trust_table),
)
