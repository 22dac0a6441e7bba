"""A tally in the terminal: the same text every time, readable without colour at any width."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.synthetic_tally import killed_tally, predicted_tally, recorded_tally

from steptally.report.terminal import print_tally
from steptally.tally import Figure, Tally


def printed(tally: Tally, width: int, **options) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, **options)
    print_tally(tally, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_recorded_run_reads_the_same_every_time(snapshot, width):
    assert printed(recorded_tally(), width) == snapshot


@pytest.mark.parametrize("tally", [predicted_tally, killed_tally])
def test_a_tally_without_some_accounts_leaves_their_sections_out(snapshot, tally):
    assert printed(tally(), 80) == snapshot


@pytest.mark.parametrize("width", [40, 60, 80, 109, 110, 200])
@pytest.mark.parametrize("tally", [recorded_tally, predicted_tally, killed_tally])
def test_no_line_is_wider_than_asked_for(tally, width):
    lines = printed(tally(), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_output_that_is_not_a_terminal_holds_no_escape_codes():
    console = Console(file=io.StringIO(), width=80)
    print_tally(recorded_tally(), console)
    assert "\x1b" not in console.file.getvalue()


def test_every_figure_of_the_summary_is_shown_whatever_its_key():
    figure = Figure(value=7, unit="bubble", basis="measured", convention="as counted by nobody")
    shown = printed(replace(recorded_tally(), summary={"pipeline_bubbles": figure}), 80)
    assert "pipeline bubbles" in shown
    assert "7 bubble" in shown
    assert "as counted by nobody" in shown


def test_executed_flops_that_differ_from_the_predicted_ones_say_by_how_much():
    summary = recorded_tally().summary
    recorded = summary["flops_per_step_executed"]
    other = replace(recorded, value=recorded.value + 1_000)
    tally = replace(recorded_tally(), summary={**summary, "flops_per_step_executed": other})
    shown = " ".join(printed(tally, 200).split())
    # The fixture's predicted integer is 78,114,717,696; 1,000 of them are 1.28e-06 %.
    assert (
        "executed FLOPs differ: predicted 78,114,717,696, measured 78,114,718,696, that is "
        "+1,000 (+1.28e-06 %)"
    ) in shown


def test_an_empty_tally_prints_its_name_and_nothing_it_does_not_know():
    assert (
        printed(Tally(basis="measured"), 80).split("\n")[0] == "steptally · unnamed job · measured"
    )


def test_names_from_a_file_cannot_write_to_the_terminal():
    job = {**recorded_tally().job, "name": "evil\x1b]0;title\x07\u202ename"}
    shown = printed(replace(recorded_tally(), job=job), 80)
    assert "evil�]0;title��name" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [60, 70, 80])
def test_a_narrow_terminal_cuts_no_number_short(width):
    rows = [
        replace(row, calls_per_step=123_456_789) for row in recorded_tally().accounts["traffic"]
    ]
    tally = replace(recorded_tally(), accounts={"traffic": rows})
    assert "123,456,789" in printed(tally, width)


def test_markup_in_names_and_warnings_is_shown_as_it_is():
    rows = recorded_tally().accounts["time"]
    group = replace(rows[0].groups[0], group="[b]GROUP[/b]")
    accounts = {"time": [replace(rows[0], groups=(group,))]}
    tally = replace(recorded_tally(), accounts=accounts, warnings=("[red]not markup[/red]",))
    shown = printed(tally, 80)
    assert "[red]not markup[/red]" in shown
    assert "[b]GROUP[/b]" in shown


def test_an_ascii_terminal_gets_bars_of_letters():
    class Ascii(io.StringIO):
        encoding = "ascii"

    console = Console(file=Ascii(), width=80, color_system=None)
    print_tally(recorded_tally(), console)
    bar = next(line for line in console.file.getvalue().splitlines() if line.startswith("rank 0"))
    assert "####aaaa" in bar
