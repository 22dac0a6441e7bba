"""A tally in the terminal: every figure with its basis and convention, at any width.

Nothing here relies on colour: parts of a bar differ by their sign, so that the same text is
readable in a log file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from steptally.report.agreement import executed_flops_agreement
from steptally.report.fitting import COLUMN_GAP, fit_columns
from steptally.report.job_lines import job_lines, job_name
from steptally.report.labels import label, ordered_figures
from steptally.report.quantity import exact, printable, quantity
from steptally.report.rank_bars import rank_bars
from steptally.report.step_points import losses, step_points
from steptally.report.table import Table
from steptally.report.tables import account_tables
from steptally.report.terminal_heat import print_heat_maps
from steptally.report.terminal_memory import print_memory
from steptally.report.terminal_steps import (
    print_heading,
    print_losses,
    print_rank_bars,
    print_steps,
)
from steptally.report.terminal_stragglers import print_verdicts
from steptally.tally import Figure, Tally

# From this width a figure's convention stands beside it; below, in a numbered note.
WIDTH_FOR_NOTES_BESIDE = 110
MOST_ROWS = 16


def print_tally(
    tally: Tally, console: Console | None = None, *, most_rows: int = MOST_ROWS
) -> None:
    """Print a tally, whole or in part: accounts that are missing are left out.

    Without a console, prints to standard output in the terminal's own width. Of each account at
    most `most_rows` rows are shown.
    """
    console = console or Console()
    _print_job(tally, console)
    print_verdicts(tally, console)
    _print_figures(tally, console)
    print_heat_maps(tally, console)
    print_rank_bars(rank_bars(tally), tally.basis_of("time"), console)
    points, basis = step_points(tally), tally.basis_of("steps")
    print_steps(points, basis, console)
    print_losses(losses(points), basis, console)
    print_memory(tally, console)
    for table in account_tables(tally, most_rows=most_rows):
        print_table(table, console)
    print_messages("Warnings", "!", tally.warnings, "yellow", console)
    print_messages("Refused: not known, and how to supply it", "×", tally.refusals, "red", console)


def _print_job(tally: Tally, console: Console) -> None:
    words = [printable(tally.basis)]
    words += [_counted(len(tally.warnings), "warning"), _counted(len(tally.refusals), "refusal")]
    console.print(
        Text(" · ".join(["steptally", job_name(tally), *filter(None, words)]), style="bold")
    )
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for heading, text in job_lines(tally):
        grid.add_row(Text(heading), Text(text))
    if tally.convention:
        grid.add_row(Text("convention"), Text(printable(tally.convention)))
    console.print(grid)


def _print_figures(tally: Tally, console: Console) -> None:
    figures = ordered_figures(tally)
    if not figures:
        return
    print_heading("Figures", "", console)
    beside = console.width >= WIDTH_FOR_NOTES_BESIDE
    notes: dict[str, int] = {}
    table = _plain_table()
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    table.add_column(
        "convention and origin" if beside else "note",
        justify="left" if beside else "right",
        overflow="fold",
    )
    for key, figure in figures:
        note = _note(figure)
        number = notes.setdefault(note, len(notes) + 1) if note and not beside else ""
        table.add_row(
            Text(label(key)),
            Text(quantity(figure.value, figure.unit), style="bold"),
            Text(figure.basis),
            Text(note if beside else str(number), style="dim"),
        )
    console.print(table)
    _print_notes(list(notes), console)
    for sentence in executed_flops_agreement(tally):
        console.print()
        console.print(Text(sentence, style="bold"))


def _note(figure: Figure) -> str:
    """What a figure rests on, with the exact integer where the value shown is rounded."""
    digits = exact(figure.value, figure.unit)
    parts = (figure.convention, figure.origin, f"exactly {digits}" if digits else "")
    return printable("; ".join(part for part in parts if part))


def _print_notes(notes: Sequence[str], console: Console) -> None:
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(style="dim", justify="right", no_wrap=True)
    grid.add_column(style="dim", overflow="fold")
    for number, note in enumerate(notes, start=1):
        grid.add_row(Text(str(number)), Text(note))
    if notes:
        console.print()
        console.print(grid)


def print_table(table: Table, console: Console) -> None:
    """Print a table in the columns that the console has room for, and say what is left out."""
    print_heading(table.title, table.note, console)
    table, no_room = fit_columns(table, console.width)
    if not table.headings:
        console.print(_drawn(table, table.rows))
    else:
        _print_under_headings(table, console)
    if table.left_out:
        console.print(Text(f"{table.left_out} more rows: see --json", style="dim"))
    if no_room:
        columns = ", ".join(no_room)
        console.print(Text(f"no room for the columns {columns}: see --json", style="dim"))


def _print_under_headings(table: Table, console: Console) -> None:
    """One table a heading, since a row cannot span the columns; all with the same widths."""
    indented = [(f"  {row[0]}", *row[1:]) for row in table.rows]
    widths = [max(map(cell_len, column)) for column in zip(table.columns, *indented, strict=True)]
    _narrow(widths, table.text_columns, console.width - COLUMN_GAP * (len(widths) - 1))
    console.print(_drawn(table, [], widths=widths))
    sections = groupby(zip(table.headings, indented, strict=True), key=itemgetter(0))
    for heading, rows in sections:
        console.print(Text(heading, style="bold"))
        console.print(_drawn(table, [row for _, row in rows], widths=widths, header=False))


def _narrow(widths: list[int], text_columns: int, available: int) -> None:
    """Take from the widest column of words until all fit: words can fold, numbers should not."""
    while sum(widths) > available:
        widest = max(range(text_columns), key=widths.__getitem__)
        if widths[widest] == 1:
            return
        widths[widest] -= 1


def _drawn(
    table: Table,
    rows: Sequence[tuple[str, ...]],
    *,
    widths: Sequence[int] = (),
    header: bool = True,
) -> RichTable:
    drawn = _plain_table(header=header, footer=bool(table.total))
    for place, column in enumerate(table.columns):
        drawn.add_column(
            Text(column),
            footer=Text(table.total[place]) if table.total else "",
            justify="left" if place < table.text_columns else "right",
            overflow="fold",
            width=widths[place] if widths else None,
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def print_messages(
    title: str, sign: str, messages: Sequence[str], colour: str, console: Console
) -> None:
    """Print sentences under a title, each behind its sign; nothing where there are none."""
    if not messages:
        return
    print_heading(title, "", console)
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(style=colour, no_wrap=True)
    grid.add_column(overflow="fold")
    for message in messages:
        grid.add_row(Text(sign), Text(printable(message)))
    console.print(grid)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}" if number else ""


def _plain_table(*, header: bool = True, footer: bool = False) -> RichTable:
    return RichTable(
        box=box.SIMPLE_HEAD,
        header_style="dim",
        footer_style="bold",
        show_header=header,
        show_footer=footer,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
