"""A table of text, which the terminal and the HTML page only draw."""

from __future__ import annotations

from dataclasses import dataclass

# Stands in a cell that has nothing to say.
NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns and rows of text; the first `text_columns` are words, the others numbers.

    Rows with the same `headings` entry stand under it. `total` closes the table where its rows
    add up; `left_out` counts the rows not shown.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    text_columns: int
    rows: tuple[tuple[str, ...], ...]
    headings: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    left_out: int = 0
