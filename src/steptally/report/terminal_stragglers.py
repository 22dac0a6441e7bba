"""A search for stragglers in the terminal: the verdicts first, in words."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from steptally.report.quantity import printable
from steptally.report.terminal_steps import print_heading
from steptally.report.verdict_cards import (
    VerdictCard,
    looked_for_stragglers,
    no_straggler,
    verdict_cards,
)
from steptally.tally import Tally


def print_verdicts(tally: Tally, console: Console) -> None:
    """Each cause of lost time as a short block, or that there is none and what could be told.

    Nothing for a tally that is of no search.
    """
    if not looked_for_stragglers(tally):
        return
    cards = verdict_cards(tally)
    basis = printable(tally.basis_of("verdicts"))
    if not cards:
        print_heading("Verdict", basis, console)
        console.print(Text(no_straggler(tally), style="bold"))
        return
    title = "Verdict" if len(cards) == 1 else f"{len(cards)} verdicts"
    note = f"{basis}; lost time = step − the same step with every duration that of its peers"
    print_heading(title, note, console)
    for number, card in enumerate(cards, start=1):
        _print_card(number, card, console)


def _print_card(number: int, card: VerdictCard, console: Console) -> None:
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    head = Text.assemble((card.name.upper(), "bold red"), ("  ", ""), (card.place, "bold"))
    grid.add_row(Text(str(number), style="bold"), head)
    for words, style in ((card.recovers, "bold"), (card.factor, ""), (card.meaning, "dim")):
        if words:
            grid.add_row("", Text(words, style=style))
    for sentence in card.evidence:
        grid.add_row(Text("–", style="dim"), Text(sentence))
    console.print(grid)
