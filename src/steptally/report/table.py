"""A table of text, which the terminal and the HTML page only draw."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Stands in a cell that has nothing to say.
NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns and rows of text; the first `text_columns` are words, the others numbers.

    Rows with the same `headings` entry stand under it. `total` closes the table where its rows
    add up; `left_out` counts the rows not shown. Where there is not room for all columns, those of
    `least_wanted` go, in this order.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    text_columns: int
    rows: tuple[tuple[str, ...], ...]
    headings: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    left_out: int = 0
    least_wanted: tuple[str, ...] = ()


def without_columns(table: Table, names: tuple[str, ...]) -> Table:
    """The table without the columns of these names."""
    dropped = {place for place, name in enumerate(table.columns) if name in names}

    def kept(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(cell for place, cell in enumerate(cells) if place not in dropped)

    return replace(
        table,
        columns=kept(table.columns),
        text_columns=sum(place not in dropped for place in range(table.text_columns)),
        rows=tuple(kept(row) for row in table.rows),
        total=kept(table.total),
    )
