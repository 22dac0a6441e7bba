"""Each account as one table of text, which the terminal and the HTML page only draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from steptally.report.memory_tables import (
    memory_changes_table,
    memory_peaks_table,
    memory_table,
)
from steptally.report.quantity import printable, quantity, ranges
from steptally.report.rehearsal_tables import programs_table, substitutions_table
from steptally.report.straggler_tables import straggler_tables
from steptally.report.table import NOTHING, Table, without_columns
from steptally.report.trace_tables import trace_tables
from steptally.tally import (
    ConventionRow,
    FlopsRow,
    GemmRow,
    GroupRow,
    LoggedRow,
    LossRow,
    ParametersRow,
    Tally,
    TrafficRow,
)


def account_tables(tally: Tally, *, most_rows: int) -> list[Table]:
    """A table for each account that the tally holds, of at most `most_rows` rows each."""
    tables = [
        _shortened(_noted(tally, account, table), most_rows)
        for account, table in (*straggler_tables(tally), *trace_tables(tally))
    ]
    for account, draw in DRAWN.items():
        if tally.accounts.get(account):
            table = draw(tally.accounts[account])
            tables.append(_shortened(_noted(tally, account, table), most_rows))
    return tables


def _noted(tally: Tally, account: str, table: Table) -> Table:
    """The table without columns that say nothing, its note beginning with the account's basis."""
    table = without_constant_columns(table)
    return replace(table, note=f"{printable(tally.basis_of(account))}; {table.note}")


def flops_table(rows: Sequence[FlopsRow]) -> Table:
    """FLOPs by term: useful, and executed by phase."""
    phases = list(dict.fromkeys(row.phase for row in rows))
    useful: dict[str, int] = defaultdict(int)
    executed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        useful[row.name] += row.useful or 0
        executed[row.name][row.phase] += row.executed

    known = any(row.useful is not None for row in rows)

    def line(name: str, of_useful: int, of_phase: Sequence[int]) -> tuple[str, ...]:
        executed_cells = [_flops(number) for number in (*of_phase, sum(of_phase))]
        return (printable(name), _flops(of_useful) if known else NOTHING, *executed_cells)

    by_phase = [sum(terms[phase] for terms in executed.values()) for phase in phases]
    return Table(
        title="FLOPs by term",
        note="of one optimizer step, over all ranks; each phase and the last column are executed: "
        "useful, and recompute, padding and unfused attention's full square",
        columns=("term", "useful", *(printable(phase) for phase in phases), "executed"),
        text_columns=1,
        rows=tuple(
            line(name, useful[name], [executed[name][phase] for phase in phases]) for name in useful
        ),
        total=line("total", sum(useful.values()), by_phase),
    )


def elementwise_table(rows: Sequence[FlopsRow]) -> Table:
    """Arithmetic that is no matrix product."""
    return Table(
        title="Elementwise arithmetic",
        note="of one optimizer step, over all ranks, forward and backward; in no MFU",
        columns=("kind", "FLOPs"),
        text_columns=1,
        rows=tuple((printable(row.name), _flops(row.executed)) for row in rows),
        total=("total", _flops(sum(row.executed for row in rows))),
    )


def conventions_table(rows: Sequence[ConventionRow]) -> Table:
    """The same step as others count it."""
    return Table(
        title="As others count it",
        note="useful FLOPs of the same step; difference from the exact count",
        columns=("convention", "source", "useful", "difference"),
        text_columns=2,
        rows=tuple(
            (
                printable(row.name),
                printable(row.source),
                quantity(row.useful, "FLOP").removesuffix(" FLOP"),
                f"{100 * row.difference:+.2f} %",
            )
            for row in rows
        ),
    )


def logged_table(rows: Sequence[LoggedRow]) -> Table:
    """Which convention makes the FLOP/s that a log prints."""
    return Table(
        title="Which convention reproduces the log",
        note="per device, medians over the steady iterations",
        columns=("convention", "counted", "logged", "difference"),
        text_columns=1,
        rows=tuple(
            (
                printable(row.name),
                quantity(row.counted_flops_per_s, "FLOP/s"),
                quantity(row.logged_flops_per_s, "FLOP/s"),
                f"{100 * row.difference:+.2f} %",
            )
            for row in rows
        ),
    )


def loss_table(rows: Sequence[LossRow]) -> Table:
    """What each loss cost: what MFU does not say."""
    return Table(
        title="Loss against tokens, wall time and FLOPs",
        note="tokens consumed; wall time is the sum of step times, without downtime",
        columns=("iteration", "loss", "tokens", "wall time", "useful FLOPs"),
        text_columns=0,
        rows=tuple(
            (
                f"{row.iteration:,}",
                f"{row.loss:.4g}",
                f"{row.tokens:,}",
                quantity(row.wall_time_s, "s"),
                quantity(row.useful_flops, "FLOP").removesuffix(" FLOP"),
            )
            for row in rows
        ),
    )


def parameters_table(rows: Sequence[ParametersRow]) -> Table:
    """Parameters by kind of tensor."""

    def line(name: str, count: int, active: int) -> tuple[str, ...]:
        return (printable(name), f"{count:,}", f"{active:,}")

    return Table(
        title="Parameters",
        note="over the whole model; active is what one token uses",
        columns=("kind", "parameters", "active"),
        text_columns=1,
        rows=tuple(line(row.name, row.count, row.active) for row in rows),
        total=line("total", sum(row.count for row in rows), sum(row.active for row in rows)),
    )


def gemms_table(rows: Sequence[GemmRow]) -> Table:
    """Matrix products by shape, the most FLOPs first; equal ones of several ranks are one line."""
    merged = sorted(_merged(rows), key=lambda pair: -pair[0].flops)
    words = ("ranks", "dtype", "bound by", "cut by", "misaligned", "helped by", "tile")
    return Table(
        title="Matrix products",
        note="C[m,n] = A[m,k] · B[k,n]; calls and FLOPs are of one step of each rank named",
        columns=(
            *("product", "phase", *words, "m × n × k", "batch"),
            *("calls", "FLOPs", "FLOP/byte", "waves", "tail", "of peak"),
        ),
        text_columns=2 + len(words),
        least_wanted=(
            *("tail", "tile", "waves", "misaligned", "FLOP/byte", "dtype", "ranks"),
            *("cut by", "batch", "helped by", "of peak", "bound by"),
        ),
        rows=tuple(
            (
                printable(row.name),
                printable(row.phase),
                ranks,
                printable(row.dtype or NOTHING),
                printable(row.bound or NOTHING),
                printable(row.cuts or NOTHING),
                printable(row.misaligned or NOTHING),
                printable(row.restore or NOTHING),
                printable(row.tile or NOTHING),
                " × ".join(f"{size:,}" for size in (row.m, row.n, row.k)),
                f"{row.batch:,}",
                f"{row.calls:,}",
                _flops(row.flops),
                _or_nothing(row.intensity, ""),
                _or_nothing(row.waves, ""),
                _or_nothing(row.tail_efficiency, "1"),
                _or_nothing(row.efficiency, "1"),
            )
            for row, ranks in merged
        ),
    )


def traffic_table(rows: Sequence[TrafficRow]) -> Table:
    """Collectives under their process group; equal ones of several ranks are one line."""
    merged = sorted(_merged(rows), key=lambda pair: (pair[0].group, pair[0].group_size))
    return Table(
        title="Communication by process group",
        note="as each rank named sees one step; bytes are of the full tensor, not on the wire",
        columns=(
            *("collective", "tensor", "phase", "ranks", "scope", "dtype", "overlapped"),
            *("calls", "bytes a call", "in all", "sent", "by network"),
        ),
        text_columns=7,
        least_wanted=("by network", "sent", "dtype", "ranks", "overlapped", "scope", "collective"),
        headings=tuple(f"{printable(row.group)}, {row.group_size} ranks" for row, _ in merged),
        rows=tuple(
            (
                printable(row.collective),
                printable(row.name or NOTHING),
                printable(row.phase),
                ranks,
                printable(row.scope or NOTHING),
                printable(row.dtype or NOTHING),
                _overlap(row),
                f"{row.calls_per_step:,}",
                quantity(row.bytes_per_call, "byte"),
                quantity(_bytes_per_step(row), "byte"),
                _or_nothing(row.sent_bytes_per_step, "byte"),
                _or_nothing(row.network_bytes_per_step, "byte"),
            )
            for row, ranks in merged
        ),
    )


def _overlap(row: TrafficRow) -> str:
    """Whether the job hides it, and if not the setting that would."""
    if row.overlapped is None:
        return NOTHING
    flag = f": {row.overlap_flag}" if row.overlap_flag and not row.overlapped else ""
    return quantity(row.overlapped, "") + printable(flag)


def groups_table(rows: Sequence[GroupRow]) -> Table:
    """Process groups by name and members, each once."""
    groups = dict.fromkeys((row.group, row.ranks, row.scope, row.nodes) for row in rows)
    return Table(
        title="Process groups",
        note="ranks in the order of their numbers",
        columns=("group", "ranks", "scope", "size", "nodes"),
        text_columns=3,
        rows=tuple(
            (printable(group), ranges(ranks), printable(scope), f"{len(ranks):,}", f"{nodes:,}")
            for group, ranks, scope, nodes in groups
        ),
    )


DRAWN: dict[str, Callable[[Sequence[Any]], Table]] = {
    "programs": programs_table,
    "substitutions": substitutions_table,
    "traffic": traffic_table,
    "groups": groups_table,
    "flops": flops_table,
    "elementwise": elementwise_table,
    "logged": logged_table,
    "loss": loss_table,
    "conventions": conventions_table,
    "gemms": gemms_table,
    "parameters": parameters_table,
    "memory_changes": memory_changes_table,
    "memory_peaks": memory_peaks_table,
    "memory": memory_table,
}


def _bytes_per_step(row: TrafficRow) -> int:
    if row.bytes_per_step is not None:
        return row.bytes_per_step
    return row.calls_per_step * row.bytes_per_call


def _or_nothing(value: float | None, unit: str) -> str:
    return NOTHING if value is None else quantity(value, unit)


def _flops(number: int) -> str:
    return quantity(number, "FLOP").removesuffix(" FLOP")


def _merged(rows: Sequence[Any]) -> list[tuple[Any, str]]:
    """Rows that differ in their rank only, once each, with those ranks in words."""
    ranks: dict[tuple[object, ...], list[Any]] = defaultdict(list)
    for row in rows:
        key = tuple(getattr(row, field.name) for field in fields(row) if field.name != "rank")
        ranks[key].append(row)
    return [(same[0], _ranks_in_words([row.rank for row in same])) for same in ranks.values()]


def _ranks_in_words(ranks: Sequence[int | None]) -> str:
    known = [rank for rank in ranks if rank is not None]
    return ranges(known) if known else "each"


def _shortened(table: Table, most_rows: int) -> Table:
    return replace(
        table,
        rows=table.rows[:most_rows],
        headings=table.headings[:most_rows],
        left_out=table.left_out + max(0, len(table.rows) - most_rows),
    )


def without_constant_columns(table: Table) -> Table:
    """Leave out columns that say nothing, and say once what a column of words repeats."""
    dropped, said_once = [], []
    for place, values in enumerate(zip(*table.rows, strict=True)):
        if place == 0 or len(set(values)) > 1:
            continue
        if values[0] == NOTHING:
            dropped.append(table.columns[place])
        elif place < table.text_columns and len(values) > 1:
            dropped.append(table.columns[place])
            said_once.append(f"{table.columns[place]} {values[0]}")

    note = table.note + (f"; in every row: {', '.join(said_once)}" if said_once else "")
    return replace(without_columns(table, tuple(dropped)), note=note)
