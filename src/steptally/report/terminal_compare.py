"""A comparison in the terminal: the two sides, in what their jobs differ, and line by line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from steptally.report.comparison_tables import (
    cut,
    figures_table,
    is_beside,
    section_table,
    totals_in_words,
)
from steptally.report.job_lines import job_name
from steptally.report.labels import label
from steptally.report.quantity import printable
from steptally.report.terminal import MOST_ROWS, print_messages, print_table
from steptally.report.terminal_steps import print_heading
from steptally.tally import Comparison, Line, Section, Tally
from steptally.tally.equal_work import SettingDifference, shown

MOST_SETTINGS = 24
MOST_NAMED = 8
MOST_SIGNS_OF_REASON = 120


def print_comparison(
    comparison: Comparison, console: Console | None = None, *, most_rows: int = MOST_ROWS
) -> None:
    """Print what differs between two tallies, of each account at most `most_rows` lines.

    Equal lines are counted. Without a console, prints to standard output in the terminal's width.
    """
    console = console or Console()
    _print_sides(comparison, console)
    _print_figures(comparison.figures, most_rows, console)
    for section in comparison.sections:
        if not section.refused:
            _print_section(section, most_rows, console)
    for side, names in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if names:
            console.print()
            console.print(Text(f"accounts in {side} alone: {', '.join(names)}", style="dim"))
    print_messages("Not compared", "×", comparison.refusals, "red", console)


def _print_sides(comparison: Comparison, console: Console) -> None:
    counts = comparison.counts()
    words = ["steptally compare", f"{counts['lines_compared']:,} lines compared"]
    words += [f"{counts['lines_different']:,} differ"]
    alone = counts["lines_only_in_a"] + counts["lines_only_in_b"]
    words += [f"{alone:,} on one side alone"] if alone else []
    console.print(Text(" · ".join(words), style="bold"))
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for side, name, tally in zip("AB", comparison.names, (comparison.a, comparison.b), strict=True):
        grid.add_row(Text(side), Text(_side(name, tally)))
    for heading, text in (
        ("job differs in", _settings(comparison.settings)),
        ("work", _work(comparison)),
    ):
        if text:
            grid.add_row(Text(heading), Text(printable(text)))
    console.print(grid)


def _side(name: str, tally: Tally) -> str:
    convention = f"convention {tally.convention}" if tally.convention else ""
    parts = [tally.basis, job_name(tally), name, convention]
    parts += [_counted(len(tally.warnings), "warning")] if tally.warnings else []
    parts += [_counted(len(tally.refusals), "refusal")] if tally.refusals else []
    return " · ".join(printable(part) for part in parts if part)


def _settings(settings: Sequence[SettingDifference]) -> str:
    """What changes the work first."""
    ordered = sorted(settings, key=lambda one: not one.work)
    words = [
        f"{one.name} {cut(shown(one.a))} → {cut(shown(one.b))}" for one in ordered[:MOST_SETTINGS]
    ]
    more = len(ordered) - MOST_SETTINGS
    return " · ".join(words) + (f" · {more} more: see --json" if more > 0 else "")


def _work(comparison: Comparison) -> str:
    if not comparison.unequal_work:
        return "equal in tokens, architecture, precision and optimizer: times and rates compare"
    reasons = [cut(reason, MOST_SIGNS_OF_REASON) for reason in comparison.unequal_work]
    named = "; ".join(reasons[:4]) + (f"; {len(reasons) - 4} more" if len(reasons) > 4 else "")
    return f"not equal, so that times and rates are shown and not compared: {named}"


def _print_figures(lines: Sequence[Line], most_rows: int, console: Console) -> None:
    if not lines:
        return
    table = figures_table(lines, most_rows)
    if table.rows:
        print_table(table, console)
    else:
        print_heading(table.title, "", console)
    equal = [line for line in lines if line.equal]
    if equal:
        _say(f"{_counted(len(equal), 'equal figure')}: {_named(equal)}", console)
    for side in ("A", "B"):
        alone = [line for line in lines if line.only_in == side]
        if alone:
            _say(f"{_counted(len(alone), 'figure')} in {side} alone: {_named(alone)}", console)


def _print_section(section: Section, most_rows: int, console: Console) -> None:
    table = section_table(section, most_rows)
    if table.rows:
        print_table(table, console)
    else:
        print_heading(table.title, table.note, console)
    equal = sum(line.equal for line in section.lines)
    if equal:
        _say(_counted(equal, "equal line"), console)
    elif not section.lines:
        _say("no lines", console)
    for side in ("A", "B"):
        beside = sum(is_beside(line) and line.only_in == side for line in section.lines)
        if beside:
            _say(f"{_counted(beside, 'line')} in {side} alone: see --json", console)
    for sentence in totals_in_words(section):
        console.print(Text(sentence))
    for note in section.notes:
        _say(printable(note), console)


def _named(lines: Sequence[Line]) -> str:
    more = len(lines) - MOST_NAMED
    names = " · ".join(label(line.quantity) for line in lines[:MOST_NAMED])
    return f"{names} · {more} more: see --json" if more > 0 else names


def _counted(number: int, words: str) -> str:
    return f"{number:,} {words}{'s' * (number != 1)}"


def _say(words: str, console: Console) -> None:
    console.print(Text(words, style="dim"))
