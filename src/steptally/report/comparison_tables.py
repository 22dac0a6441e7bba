"""A comparison as tables of text: what differs, of what, by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from steptally.report.comparison_rows import (
    ComparisonRow,
    without_ranks,
    without_repeated_values,
)
from steptally.report.kernel_names import short_kernel
from steptally.report.labels import label
from steptally.report.quantity import Value, printable, quantity, ranges
from steptally.report.table import NOTHING, Table
from steptally.report.tables import without_constant_columns
from steptally.tally import Line, Section
from steptally.tally.line import is_number

TITLES = {
    "flops": "FLOPs by term",
    "elementwise": "Elementwise arithmetic",
    "conventions": "As others count it",
    "logged": "Which convention reproduces the log",
    "loss": "Loss along the log",
    "parameters": "Parameters",
    "gemms": "Matrix products",
    "traffic": "Communication",
    "groups": "Process groups",
    "memory": "Memory",
    "memory_peaks": "Memory peaks",
    "memory_timeline": "Memory over a step",
    "memory_changes": "Single changes",
    "time": "Time of traced steps",
    "time by group": "Communication time of traced steps",
    "recording": "Time of whole recordings",
    "recording by group": "Communication time of whole recordings",
    "partial_steps": "Parts of steps",
    "sources": "Recordings",
    "gaps": "Idle time by what the device waited for",
    "kernel_families": "Kernels by family",
    "kernels": "Kernels",
    "fusion": "Fusion candidates",
    "contention": "Contention",
    "net_gain": "Net gain of overlap",
    "trust": "Trust",
    "steps": "Step time",
    "steps by step": "Loss by step",
}
SHAPE = ("m", "n", "k")
WHAT = "what"
WHY_NOT = "not compared:"
# Accounts whose rows stand under some of their keys.
HEADINGS = {
    "traffic": ("group", "collective"),
    "time": ("group",),
    "recording": ("group",),
    "kernels": ("family",),
}
# Quantities whose account says the rest.
SHORT = {
    "bytes_per_step": "bytes",
    "calls_per_step": "calls",
    "sent_bytes_per_step": "sent",
    "network_bytes_per_step": "by network",
}
# Units that the name of what is counted says too.
SAID = ("FLOP", "FLOP/token", "parameter", "token", "call", "rank", "node", "step", "sequence")
NUMBERS = ("A", "B", "difference", "B / A − 1")
# Beyond this a ratio is easier to read than a percentage.
LARGEST_PERCENTAGE = 10
MOST_SIGNS = 48


def figures_table(lines: Sequence[Line], most_rows: int) -> Table:
    """Figures that both sides have and that are not equal."""
    shown = [line for line in lines if not line.equal and not line.only_in]
    table = Table(
        title="Figures",
        note="B / A − 1 is relative to A",
        columns=("figure", "basis", WHY_NOT, *NUMBERS),
        text_columns=3,
        rows=tuple(
            (label(line.quantity), _bases(line.basis), _refused(line), *_numbers(line))
            for line in shown
        ),
    )
    return _finished(table, most_rows)


def section_table(section: Section, most_rows: int) -> Table:
    """The lines of a section that differ, what matters first; equal ones of several ranks are one.

    A line that one side alone has stands here where the other then has nothing of it.
    """
    lines = [line for line in section.lines if not line.equal and not is_beside(line)]
    rows = without_repeated_values(without_ranks(lines, section.keys))
    above = [name for name in HEADINGS.get(section.account, ()) if name in section.keys]
    rows = _together(rows, above)
    heads, cells = _key_columns([key for key in section.keys if key not in above])
    words = (WHAT, WHY_NOT, "also")
    table = Table(
        title=_title(section),
        note=_note(section),
        columns=(*heads, *words, *NUMBERS, "of all"),
        text_columns=len(heads) + len(words),
        rows=tuple(
            (
                *cells(row),
                ", ".join(map(_what, row.quantities)),
                _refused(row.line),
                _also(row.line),
                *_numbers(row.line),
                NOTHING if row.line.share is None else quantity(row.line.share, "1"),
            )
            for row in rows
        ),
        headings=tuple(_heading(row, above) for row in rows) if above else (),
        least_wanted=("also", "of all", "batch", "group size"),
    )
    return _without_repeated_keys(_finished(table, most_rows))


def is_beside(line: Line) -> bool:
    """Whether a line of one side alone says nothing about the other."""
    return bool(line.only_in) and not line.counts


def totals_in_words(section: Section) -> list[str]:
    """A sentence for each quantity that adds up."""
    return [f"all {_what(line.quantity)}: {_in_words(line)}" for line in section.totals]


def change_in_words(line: Line) -> str:
    """By how much B differs from A: `+3.2 %`, or `from nothing`.

    >>> change_in_words(Line(account="", quantity="", unit="", a=4, b=5, difference=1,
    ...                      relative=0.25))
    '+25 %'
    """
    if line.relative is None:
        return "from nothing" if line.difference else NOTHING
    if line.relative > LARGEST_PERCENTAGE:
        return f"× {line.relative + 1:,.4g}"
    return f"{100 * line.relative:+.3g} %"


def cut(text: str, most: int = MOST_SIGNS) -> str:
    """A text that may be long, as a list of a thousand ranks."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _in_words(line: Line) -> str:
    both = f"{_shown(line.a, line.unit)} in A, {_shown(line.b, line.unit)} in B"
    if line.refused:
        return f"{both}; not compared: {line.refused}"
    if line.equal:
        return f"equal, {_shown(line.a, line.unit)}"
    return f"{both}, {_signed(line.difference, line.unit)} ({change_in_words(line)})"


def _numbers(line: Line) -> tuple[str, ...]:
    values = (
        NOTHING if line.only_in == other else _shown(value, line.unit)
        for value, other in ((line.a, "B"), (line.b, "A"))
    )
    if line.only_in:
        return (*values, f"only in {line.only_in}", NOTHING)
    if line.refused or line.difference is None:
        return (*values, NOTHING, NOTHING)
    return (*values, _signed(line.difference, line.unit), change_in_words(line))


def _shown(value: Value, unit: str) -> str:
    if isinstance(value, float) and not unit:
        return f"{value:.6g}"
    text = quantity(value, "FLOP" if unit.startswith("FLOP") and unit in SAID else unit)
    return text.partition(" ")[0] if unit in SAID and is_number(value) else text


def _signed(value: int | float | None, unit: str) -> str:
    """A difference with its sign; of percentages, in points of a hundredth."""
    if value is None:
        return NOTHING
    sign = "+" if value > 0 else ""
    if unit == "1":
        return f"{sign}{_shown(value, unit).removesuffix(' %')} points"
    return f"{sign}{_shown(value, unit)}"


def _what(name: str) -> str:
    return SHORT.get(name) or label(name)


def _refused(line: Line) -> str:
    return printable(line.refused) or NOTHING


def _also(line: Line) -> str:
    words = (f"{_spelled(name)} {cut(a)} → {cut(b)}" for name, (a, b) in line.words.items())
    return printable("; ".join(words)) or NOTHING


def _bases(basis: tuple[str, str]) -> str:
    return printable(basis[0] if basis[0] == basis[1] else " / ".join(filter(None, basis)))


def _title(section: Section) -> str:
    own = " by ".join((section.account, *section.keys[-1:]))
    return TITLES.get(own) or TITLES.get(section.account) or label(section.account)


def _note(section: Section) -> str:
    keys = ", ".join(_spelled(key) for key in section.keys)
    both = " against ".join(section.basis)
    bases = f"both {section.basis[0]}" if section.basis[0] == section.basis[1] else both
    return f"{printable(bases)}; " + (f"matched by {keys}" if keys else "all rows together")


def _key_columns(
    keys: Sequence[str],
) -> tuple[tuple[str, ...], Callable[[ComparisonRow], tuple[str, ...]]]:
    """Headings of a line's keys, and what makes the cells of one line beneath them."""
    shape = all(name in keys for name in SHAPE)
    first = [name for name in keys if name not in (*(SHAPE if shape else ()), "batch", "rank")]
    heads = [_spelled(name) for name in first]
    heads += ["m × n × k"] if shape else []
    heads += [{"rank": "ranks"}.get(name, name) for name in ("batch", "rank") if name in keys]

    def cells(row: ComparisonRow) -> tuple[str, ...]:
        key = row.line.key
        found = [_cell(name, key[name]) for name in first]
        found += [" × ".join(_word(key[name]) for name in SHAPE)] if shape else []
        found += [_word(key["batch"])] if "batch" in keys else []
        found += [ranges(row.ranks)] if "rank" in keys else []
        return tuple(found)

    return tuple(heads), cells


def _together(rows: Sequence[ComparisonRow], above: Sequence[str]) -> list[ComparisonRow]:
    """Rows under the same heading side by side; headings in the order of their first row."""
    order = list(dict.fromkeys(_heading(row, above) for row in rows))
    return sorted(rows, key=lambda row: order.index(_heading(row, above)))


def _heading(row: ComparisonRow, above: Sequence[str]) -> str:
    return " · ".join(_word(row.line.key[name]) for name in above)


def _without_repeated_keys(table: Table) -> Table:
    """The keys of a row only where they are not those of the row above."""
    if WHAT not in table.columns:
        return table
    width = table.columns.index(WHAT)
    headings = table.headings or ("",) * len(table.rows)
    keys = [(heading, row[:width]) for heading, row in zip(headings, table.rows, strict=True)]
    rows = [
        (*("",) * width, *row[width:]) if place and keys[place] == keys[place - 1] else row
        for place, row in enumerate(table.rows)
    ]
    return replace(table, rows=tuple(rows))


def _cell(name: str, value: Any) -> str:
    if name == "chain":
        return " → ".join(short_kernel(kernel, MOST_SIGNS) for kernel in value)
    if name == "name" and isinstance(value, str) and "(" in value:  # a kernel's signature
        return short_kernel(value)
    return quantity(value, "byte") if name == "bytes_per_call" else _word(value)


def _word(value: Any) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else printable(str(value)) or NOTHING


def _spelled(name: str) -> str:
    return name.replace("_", " ")


def _finished(table: Table, most_rows: int) -> Table:
    if not table.rows:
        return table
    kept = replace(table, rows=table.rows[:most_rows], headings=table.headings[:most_rows])
    left_out = len(table.rows) - len(kept.rows)
    return replace(without_constant_columns(kept), left_out=left_out)
