"""A comparison in the terminal: the same text every time, at any width."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.synthetic_tally import DEMO_JOB, predicted_tally, recorded_tally

from steptally.report.terminal_compare import print_comparison
from steptally.tally import compare_tallies


def printed(a, b, width, **options):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_comparison(compare_tallies(a, b, names=("a.json", "runs/b")), console, **options)
    return console.file.getvalue()


def another_run():
    """The recorded run with tensor parallelism 4, slower steps and one term of more FLOPs."""
    run = recorded_tally()
    layout = {**DEMO_JOB["layout"], "tensor_model_parallel_size": 4, "data_parallel_size": 1}
    first, *rest = run.accounts["flops"]
    steps = [replace(row, duration_ns=row.duration_ns * 11 // 10) for row in run.accounts["steps"]]
    traffic = [
        replace(row, group_size=4, calls_per_step=2 * row.calls_per_step)
        for row in run.accounts["traffic"]
    ]
    accounts = {
        **run.accounts,
        "flops": [replace(first, executed=first.executed + 1), *rest],
        "steps": steps,
        "traffic": traffic,
        "gemms": run.accounts["gemms"][:-1],
    }
    slower = replace(run.summary["step_time_s"], value=1.33)
    return replace(
        run,
        job={**DEMO_JOB, "layout": layout},
        accounts=accounts,
        summary={**run.summary, "step_time_s": slower},
    )


def other_work():
    """A recording of longer sequences: its times cannot be held against the demo's."""
    return replace(
        recorded_tally(), job={**DEMO_JOB, "layout": {**DEMO_JOB["layout"], "seq_length": 512}}
    )


@pytest.mark.parametrize("width", [80, 120])
def test_two_runs_read_the_same_every_time(snapshot, width):
    assert printed(recorded_tally(), another_run(), width) == snapshot


def test_predicted_against_measured(snapshot):
    assert printed(predicted_tally(), recorded_tally(), 80) == snapshot


def test_unequal_work(snapshot):
    assert printed(recorded_tally(), other_work(), 80, most_rows=4) == snapshot


@pytest.mark.parametrize("width", [60, 80, 110, 200])
@pytest.mark.parametrize("other", [another_run, predicted_tally, other_work])
def test_no_line_is_wider_than_asked_for(other, width):
    lines = printed(recorded_tally(), other(), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_names_from_a_file_cannot_write_to_the_terminal():
    run = recorded_tally()
    evil = "evil\x1b]0;title\x07\u202e[red]name[/red]"
    layout = {**DEMO_JOB["layout"], evil: evil}
    rows = [replace(run.accounts["flops"][0], name=evil, phase=evil)]
    other = replace(run, job={**DEMO_JOB, "name": evil, "layout": layout}, accounts={"flops": rows})
    shown = printed(run, other, 200)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]name[/red]" in shown
