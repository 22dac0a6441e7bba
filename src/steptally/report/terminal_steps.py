"""The time of a run in the terminal: bars of each rank, walls of each step, the loss curve."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from steptally.report.curve import braille_curve, column_heights
from steptally.report.glyphs import cells, signs
from steptally.report.quantity import duration, printable, share
from steptally.report.rank_bars import (
    Part,
    RankBar,
    extremes,
    present_parts,
    shown_bars,
    steps_of,
)
from steptally.report.step_points import (
    StepPoint,
    counted_points,
    losses_in_words,
    steps_in_words,
    thinned,
)

MOST_BARS = 16
CURVE_HEIGHT = 7
WIDEST_CURVE = 72


def print_heading(title: str, note: str, console: Console) -> None:
    """A section's title, and beneath it what its numbers mean."""
    console.print()
    console.print(Text(title, style="bold underline"))
    if note:
        console.print(Text(note, style="dim"))


def print_rank_bars(bars: Sequence[RankBar], basis: str, console: Console) -> None:
    """One stacked bar a rank, and the legend with each part's range over the ranks."""
    if not bars:
        return
    print_heading("Where each rank's step went", f"{printable(basis)}; {steps_of(bars)}", console)
    parts = present_parts(bars)
    chosen = signs(parts, ascii_only=console.options.ascii_only)
    _print_bars(bars, parts, chosen, console)
    legend = RichTable.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right"):
        legend.add_column(justify=justify, overflow="fold")
    legend.add_row("", *(Text(word, style="dim") for word in ("of any rank", "least", "most")))
    for part in parts:
        sign, colour = chosen[part.name]
        least, most = extremes(bars, part.name)
        texts = (Text(part.name), Text(duration(least)), Text(duration(most)))
        legend.add_row(Text(sign * 2, style=colour), *texts)
    console.print(legend)


def _print_bars(
    bars: Sequence[RankBar],
    parts: Sequence[Part],
    chosen: dict[str, tuple[str, str]],
    console: Console,
) -> None:
    names = [part.name for part in parts]
    longest_ns = max(bar.span_ns for bar in bars)
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    kept = shown_bars(bars, MOST_BARS)
    for bar in kept:
        shown = [part for part in bar.parts if part.name in names]
        counts = cells([part.duration_ns for part in shown], longest_ns, console.width - 36)
        line = Text()
        for part, count in zip(shown, counts, strict=True):
            sign, colour = chosen[part.name]
            line.append(sign * count, style=colour)
        compute = share(bar.parts[0].duration_ns, bar.span_ns)
        grid.add_row(f"rank {bar.rank}", line, f"{duration(bar.span_ns)}, {compute} compute")
    console.print(grid)
    if len(kept) < len(bars):
        words = f"{len(kept)} of {len(bars):,} ranks: those with the longest and shortest steps"
        console.print(Text(words, style="dim"))


def print_steps(points: Sequence[StepPoint], basis: str, console: Console) -> None:
    """The slowest rank's wall of each step as a row of columns, with the counted steps' range."""
    if not points:
        return
    print_heading(
        "Steps", f"{printable(basis)}; slowest rank's wall; {steps_in_words(points)}", console
    )
    shown = thinned(points, min(console.width - 2, WIDEST_CURVE))
    counted = counted_points(points)
    fastest, slowest = min(counted, key=_wall), max(counted, key=_wall)
    if not console.options.ascii_only:
        walls = [point.wall_ns for point in shown]
        heights = column_heights(walls, fastest.wall_ns, slowest.wall_ns)
        console.print(Text(heights, style="cyan"))
    marks = {"warm-up": "w", "traced": "t", "incomplete": "?", "counted": " "}
    line = "".join(marks[point.kind] for point in shown).rstrip()
    if line:
        console.print(Text(line))
        console.print(Text("w warm-up, t traced, ? not finished by every rank", style="dim"))
    console.print(
        Text(
            f"{duration(fastest.wall_ns)} (step {fastest.step}) to {duration(slowest.wall_ns)} "
            f"(step {slowest.step}, rank {slowest.slowest_rank}); what lies outside is cut"
        )
    )


def print_losses(curve: Sequence[tuple[int, float]], basis: str, console: Console) -> None:
    """The loss of each step as a curve, and its first, last and lowest value in words."""
    if not curve:
        return
    print_heading("Loss", f"{printable(basis)}; {losses_in_words(curve)}", console)
    if len(curve) < 2 or console.options.ascii_only:
        return
    values = [loss for _, loss in curve]
    width = min(console.width - 12, WIDEST_CURVE)
    lines = braille_curve(values, width, CURVE_HEIGHT)
    for place, line in enumerate(lines):
        mark = {0: f"{max(values):.4f}", len(lines) - 1: f"{min(values):.4f}"}.get(place, "")
        console.print(Text.assemble((f"{mark:>9} ", "dim"), ("│", "dim"), (line, "cyan")))
    first, last = str(curve[0][0]), str(curve[-1][0])
    console.print(Text(" " * 11 + first + last.rjust(width - len(first)), style="dim"))


def _wall(point: StepPoint) -> int:
    return point.wall_ns
