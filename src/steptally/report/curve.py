"""A curve drawn with braille dots: two columns and four rows of dots a character."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Bit of each dot in a braille character, by row and column (Unicode block U+2800).
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BARS = "▁▂▃▄▅▆▇█"


def braille_curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """`height` lines of at most `width` characters: the values in order, joined by lines.

    The top line holds the largest value and the bottom line the smallest; values that are not
    finite leave a gap.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    columns = 2 * width
    canvas = [[0] * width for _ in range(height)]
    previous: tuple[int, int] | None = None
    for place, value in enumerate(values):
        if not math.isfinite(value):
            previous = None
            continue
        column = place * (columns - 1) // max(1, len(values) - 1)
        row = round((high - value) / (high - low) * (4 * height - 1)) if high > low else 2 * height
        for dot_column, dot_row in _line(previous or (column, row), (column, row)):
            canvas[dot_row // 4][dot_column // 2] |= DOTS[dot_row % 4][dot_column % 2]
        previous = (column, row)
    return ["".join(chr(0x2800 + bits) for bits in line) for line in canvas]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Every dot from `start` to `end`, both included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    return [
        (
            start[0] + round(step * (end[0] - start[0]) / max(1, steps)),
            start[1] + round(step * (end[1] - start[1]) / max(1, steps)),
        )
        for step in range(steps + 1)
    ]


def column_heights(values: Sequence[int], low: int, high: int) -> str:
    """One character a value, from the lowest column at `low` to a full one at `high`.

    Values outside are cut to that range.

    >>> column_heights([1, 4, 8, 20], 1, 8)
    '▁▄██'
    """
    top = len(BARS) - 1
    if high <= low:
        return BARS[top // 2] * len(values)
    return "".join(
        BARS[(min(max(value, low), high) - low) * top // (high - low)] for value in values
    )
