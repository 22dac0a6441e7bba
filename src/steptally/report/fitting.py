"""Which columns of a table a terminal has room for."""

from __future__ import annotations

from rich.cells import cell_len

from steptally.report.table import Table, without_columns

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
            table = without_columns(table, (name,))
            left_out.append(name)
    return table, tuple(left_out)


def readable_width(table: Table) -> int:
    """Columns of a terminal that it takes to read the table: numbers whole, words folded."""
    widths = [max(map(cell_len, cells)) for cells in zip(table.columns, *table.rows, strict=True)]
    words = [min(width, READABLE_WIDTH) for width in widths[: table.text_columns]]
    gaps = COLUMN_GAP * (len(widths) - 1)
    return sum(words) + sum(widths[table.text_columns :]) + gaps
