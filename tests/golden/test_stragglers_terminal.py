"""A search for stragglers in the terminal: verdicts first, readable without colour at any width."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.synthetic_stragglers import quiet_tally, slow_worker, slow_worker_tally

from steptally.report.terminal import print_tally
from steptally.tally import VERDICT_CLASSES, Tally, VerdictRow, tally_from_json


def printed(tally: Tally, width: int, **options) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, **options)
    print_tally(tally, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_slow_worker_reads_the_same_every_time(snapshot, width):
    assert printed(slow_worker_tally(), width) == snapshot


def test_where_nobody_is_slow_it_says_what_could_have_been_told(snapshot):
    assert printed(quiet_tally(), 80) == snapshot


@pytest.mark.parametrize("width", [40, *range(60, 201, 7), 200])
@pytest.mark.parametrize("tally", [slow_worker_tally, quiet_tally])
def test_no_line_is_wider_than_asked_for(tally, width):
    lines = printed(tally(), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_a_search_read_back_from_its_json_is_shown_the_same():
    tally = slow_worker_tally()
    assert printed(tally_from_json(tally.dumps()), 100) == printed(tally, 100)


def test_a_tally_of_no_search_says_nothing_of_stragglers():
    assert "erdict" not in printed(Tally(basis="measured"), 80)


def test_a_search_that_could_not_tell_its_smallest_effect_says_so():
    shown = " ".join(printed(Tally(basis="measured", accounts={"verdicts": []}), 80).split())
    assert "No straggler found" in shown
    assert "How small an effect this recording would show is not known." in shown


@pytest.mark.parametrize("verdict", VERDICT_CLASSES)
def test_every_class_has_a_name_in_words(verdict):
    shown = printed(with_verdict(replace(slow_worker(), verdict=verdict)), 80)
    assert verdict.replace("-", " ").upper() in shown


def test_a_verdict_that_knows_only_its_class_is_shown_without_what_it_does_not_know():
    shown = printed(with_verdict(VerdictRow(verdict="not-identifiable")), 80)
    assert "NOT IDENTIFIABLE  all ranks" in shown
    assert "None" not in shown
    assert "recovers" not in shown


def test_a_cause_that_hides_other_delays_brings_back_more_than_was_lost_and_says_why():
    row = replace(slow_worker(), verdict="stage-imbalance", share_recovered=1.208)
    shown = printed(with_verdict(row), 120)
    assert "120.8 % of the lost time, 593.8 ms a step: it hides other delays too" in shown
    assert "2.00× the other stages' time" in shown


def test_ranks_in_many_runs_are_counted_rather_than_listed():
    row = replace(slow_worker(), ranks=tuple(range(0, 1000, 2)))
    shown = printed(with_verdict(row), 120)
    assert "ranks 0, 2, 4, 6, 8, 10, … (500 in all)" in shown


def with_verdict(row: VerdictRow) -> Tally:
    return replace(slow_worker_tally(), accounts={"verdicts": [row]})
