"""Which columns of a table a terminal has room for."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len

from steptally.report.tables import Table

COLUMN_GAP = 2
# Words fold at this width or above without hurting the reader.
READABLE_WIDTH = 18


def fit_columns(table: Table, width: int) -> tuple[Table, tuple[str, ...]]:
    """The table without as many of its `least_wanted` columns as it takes to fit, and those."""
    left_out: list[str] = []
    for name in table.least_wanted:
        if readable_width(table) <= width:
            break
        if name in table.columns:
            table = without_column(table, table.columns.index(name))
            left_out.append(name)
    return table, tuple(left_out)


def readable_width(table: Table) -> int:
    """Columns of a terminal that it takes to read the table: numbers whole, words folded."""
    widths = [max(map(cell_len, cells)) for cells in zip(table.columns, *table.rows, strict=True)]
    words = [min(width, READABLE_WIDTH) for width in widths[: table.text_columns]]
    gaps = COLUMN_GAP * (len(widths) - 1)
    return sum(words) + sum(widths[table.text_columns :]) + gaps


def without_column(table: Table, place: int) -> Table:
    """The table less one column."""

    def kept(cells: tuple[str, ...]) -> tuple[str, ...]:
        return cells[:place] + cells[place + 1 :] if cells else cells

    return replace(
        table,
        columns=kept(table.columns),
        text_columns=table.text_columns - (place < table.text_columns),
        rows=tuple(kept(row) for row in table.rows),
        total=kept(table.total),
    )
