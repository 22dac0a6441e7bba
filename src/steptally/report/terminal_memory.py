"""Memory in the terminal: a stacked bar for each stage, and the rise and fall through a step."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from steptally.report.glyphs import cells
from steptally.report.memory_bars import (
    LIFETIMES,
    MEANING,
    MemoryBar,
    columns,
    memory_bars,
    memory_moments,
)
from steptally.report.quantity import printable, quantity
from steptally.report.terminal_steps import print_heading
from steptally.tally import MemoryMomentRow, Tally

SIGNS = dict(zip(LIFETIMES, "█▓▒░·", strict=True))
SIGNS_ASCII = dict(zip(LIFETIMES, "#%+-.", strict=True))
COLOURS = dict(zip(LIFETIMES, ("green", "blue", "yellow", "magenta", "bright_black"), strict=True))
MOST_BARS = 16
HEIGHT = 8
WIDEST = 96


def print_memory(tally: Tally, console: Console) -> None:
    """The pictures of a tally's memory account; nothing where it has none at a peak."""
    bars = memory_bars(tally)
    if bars:
        basis = printable(tally.basis_of("memory"))
        print_heading("Memory at the peak of a later step", f"{basis}; of one rank", console)
        _print_bars(bars, console)
    moments = memory_moments(tally)
    if moments:
        _print_timeline(moments, console)


def _print_bars(bars: Sequence[MemoryBar], console: Console) -> None:
    signs = SIGNS_ASCII if console.options.ascii_only else SIGNS
    longest = max(sum(bar.sizes) for bar in bars)
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for bar in bars[:MOST_BARS]:
        line = Text()
        for lifetime, count in zip(
            LIFETIMES, cells(bar.sizes, longest, min(WIDEST, console.width - 34)), strict=True
        ):
            line.append(signs[lifetime] * count, style=COLOURS[lifetime])
        stage = f"stage {bar.pp}, " if bar.pp is not None else ""
        grid.add_row(f"{stage}rank {bar.rank}", line, quantity(sum(bar.sizes), "byte"))
    console.print(grid)
    if len(bars) > MOST_BARS:
        console.print(Text(f"{len(bars) - MOST_BARS} more stages: see --json", style="dim"))
    _print_legend(bars, signs, console)


def _print_legend(bars: Sequence[MemoryBar], signs: dict[str, str], console: Console) -> None:
    legend = RichTable.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "left"):
        legend.add_column(justify=justify, overflow="fold")
    legend.add_row("", *(Text(word, style="dim") for word in ("lifetime", "least", "most", "")))
    for place, lifetime in enumerate(LIFETIMES):
        sizes = [bar.sizes[place] for bar in bars]
        if not any(sizes):  # a rehearsal knows nothing of what is outside
            continue
        legend.add_row(
            Text(signs[lifetime] * 2, style=COLOURS[lifetime]),
            Text(lifetime),
            Text(quantity(min(sizes), "byte")),
            Text(quantity(max(sizes), "byte")),
            Text(MEANING[lifetime], style="dim"),
        )
    console.print(legend)


def _print_timeline(moments: Sequence[MemoryMomentRow], console: Console) -> None:
    """One column an event (or several events): held from before, and what it needs on top."""
    held_sign, peak_sign = ("#", ":") if console.options.ascii_only else ("█", "░")
    width = max(1, min(WIDEST, console.width - 16))
    print_heading(
        f"Allocated through a step, rank {moments[0].rank}",
        f"events in order, not to scale in time; {held_sign} held before, {peak_sign} while it "
        f"runs",
        console,
    )
    found = columns(moments, width)
    top = max(peak for _, peak in found)
    for row in range(HEIGHT, 0, -1):
        floor = (2 * row - 1) * top // (2 * HEIGHT)  # the middle of the row
        line = "".join(
            held_sign if held >= floor else peak_sign if peak >= floor else " "
            for held, peak in found
        )
        label = quantity(top * row // HEIGHT, "byte") if row in (HEIGHT, HEIGHT // 2) else ""
        console.print(Text(f"{label:>12} {line.rstrip()}"), no_wrap=True)
    console.print(Text(f"{'':>12} {_marks(moments, width)}", style="dim"), no_wrap=True)


def _marks(moments: Sequence[MemoryMomentRow], width: int) -> str:
    """Where the first step, a later step and a checkpoint save begin."""
    marks = [" "] * width
    for word in ("first", "later", "checkpoint"):
        place = next(
            (index for index, one in enumerate(moments) if word in (one.step, one.event)), None
        )
        if place is None:
            continue
        text = f"|{word} step" if word != "checkpoint" else "|save"
        start = min(place * width // len(moments), max(0, width - len(text)))
        marks[start : start + len(text)] = text
    return "".join(marks).rstrip()
