"""Heat maps in the terminal: shades that read without colour, and numbers where there is room."""

from __future__ import annotations

from string import ascii_lowercase

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from steptally.report.heat_map import (
    AS_PEERS,
    LEVEL_ENDS,
    NO_PEERS,
    HeatCell,
    HeatMap,
    marked,
    with_columns,
)
from steptally.report.peer_maps import peer_maps
from steptally.report.quantity import printable
from steptally.report.terminal_steps import print_heading
from steptally.tally import Tally

MOST_ROWS = 24
SHADES, SHADES_ASCII = "-·░▒▓█", "-.:+%#"
COLOURS = ("cyan", "bright_black", "yellow", "yellow", "red", "bright_red")
# A column that holds a shade and a number: `██ 1.98`, and a gap.
WIDE = 8
# A column of one sign a cell is at most so wide.
WIDEST_NARROW = 3
WIDEST_MAP = 100
WIDEST_NAME = 24


def print_heat_maps(tally: Tally, console: Console) -> None:
    """Each map of the account `peers`, and once what the shades mean; nothing without it."""
    maps = peer_maps(tally, most_rows=MOST_ROWS)
    for heat in maps:
        print_heading(heat.title, f"{printable(tally.basis_of('peers'))}; {heat.note}", console)
        _print_map(heat, console)
    if maps:
        console.print()
        console.print(Text(_legend(ascii_only=console.options.ascii_only), style="dim"))


def _print_map(heat: HeatMap, console: Console) -> None:
    widths = _label_widths(heat)
    room = min(console.width - sum(widths) - 2 * len(widths), WIDEST_MAP)
    if heat.ordinal and len(heat.columns) * WIDE > room:
        _print_narrow(with_columns(heat, max(room, 1)), widths, room, console)
    else:
        _print_wide(with_columns(heat, max(room // WIDE, 1)), widths, room, console)


def _print_wide(heat: HeatMap, widths: list[int], room: int, console: Console) -> None:
    """A shade and a number a cell; names that do not fit above it stand in a list beneath."""
    names = [set_cell_size(name, min(cell_len(name), WIDEST_NAME)) for name in heat.columns]
    column = max(WIDE, *(cell_len(name) + 2 for name in names))
    spelled_out = column * len(names) <= room
    if not spelled_out:
        column, names = WIDE, [_letter(at) for at in range(len(names))]
    head = _label_cells(heat.heads, widths) + "".join(set_cell_size(n, column) for n in names)
    console.print(Text(head.rstrip(), style="dim"), no_wrap=True)
    shades = _shades(console)
    for labels, cells in zip(heat.labels, heat.cells, strict=True):
        line = Text(_label_cells(labels, widths))
        for cell in cells:
            line.append(set_cell_size(_wide(cell, shades), column), style=_colour(cell))
        line.rstrip()
        console.print(line, no_wrap=True)
    if not spelled_out:
        pairs = zip(names, heat.columns, strict=True)
        words = ", ".join(f"{letter} {name}" for letter, name in pairs)
        console.print(Text(f"{heat.across}: {words}", style="dim"))
    if heat.left_out:
        words = f"{heat.left_out} more that differ less: see --json"
        console.print(Text(words, style="dim"))
    for _, _, cell in marked(heat):
        console.print(Text(cell.words))


def _print_narrow(heat: HeatMap, widths: list[int], room: int, console: Console) -> None:
    """One sign a cell; the worst carry a number, and a line beneath tells what they are."""
    worst = marked(heat)
    numbers = {(row, column): str(at) for at, (row, column, _) in enumerate(worst, start=1)}
    size = min(max(room // len(heat.columns), 1), WIDEST_NARROW)
    first, last = f"{heat.across} {heat.columns[0]}", heat.columns[-1]
    gap = size * len(heat.columns) - cell_len(first) - cell_len(last)
    ends = f"{first}{' ' * gap}{last}" if gap > 0 else f"{first} … {last}"
    console.print(Text(_label_cells(heat.heads, widths) + ends, style="dim"), no_wrap=True)
    shades = _shades(console)
    for row, (labels, cells) in enumerate(zip(heat.labels, heat.cells, strict=True)):
        line = Text(_label_cells(labels, widths))
        for column, cell in enumerate(cells):
            shade = _shade(cell, shades)
            sign = numbers.get((row, column), shade)
            line.append(sign + shade * (size - 1), style=_colour(cell))
        line.rstrip()
        console.print(line, no_wrap=True)
    for number, (_, _, cell) in enumerate(worst, start=1):
        console.print(Text(f"{number}  {cell.words}"))


def _label_widths(heat: HeatMap) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(heat.heads, *heat.labels, strict=True)]


def _label_cells(labels: tuple[str, ...], widths: list[int]) -> str:
    cells = zip(labels, widths, strict=True)
    return "".join(" " * (width - cell_len(label)) + label + "  " for label, width in cells)


def _letter(at: int) -> str:
    turn, place = divmod(at, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(turn) if turn else "")


def _shades(console: Console) -> str:
    return SHADES_ASCII if console.options.ascii_only else SHADES


def _shade(cell: HeatCell | None, shades: str) -> str:
    if cell is None:
        return " "
    return "?" if cell.level == NO_PEERS else shades[cell.level]


def _colour(cell: HeatCell | None) -> str:
    return "" if cell is None or cell.level == NO_PEERS else COLOURS[cell.level]


def _wide(cell: HeatCell | None, shades: str) -> str:
    shade = _shade(cell, shades)
    if cell is None or cell.ratio is None or cell.level == AS_PEERS:
        return shade
    return f"{shade * 2} {short(cell.ratio)}"


def short(ratio: float) -> str:
    """A ratio in at most four signs.

    >>> short(1.976), short(31.24), short(250.0), short(5000.0)
    ('1.98', '31.2', '250', '>999')
    """
    if ratio >= 999.5:
        return ">999"
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


def _legend(*, ascii_only: bool) -> str:
    shades = SHADES_ASCII if ascii_only else SHADES
    low, high, *ends = LEVEL_ENDS
    words = [
        f"{shades[AS_PEERS]} {low:.2f} to {high:.2f} times the peers' time",
        f"{shades[0]} less",
    ]
    words += [f"{shade} to {end:.2f}" for shade, end in zip(shades[2:], ends, strict=False)]
    words += [f"{shades[-1]} more", "? no peers", "blank: not recorded"]
    return ", ".join(words)
