"""A search for stragglers on the HTML page: closed, offline, small, hostile text shown as text."""

import re
from dataclasses import replace

import pytest
from tests.synthetic_stragglers import (
    peer_rows,
    places,
    quiet_tally,
    replay_rows,
    slow_worker,
    slow_worker_tally,
    wait_rows,
)
from tests.unit.test_report_html import HOSTILE, outline_of

from steptally.report.html import render_html
from steptally.report.html_stragglers import MOST_BARS, heat_charts, replay_plot, wait_chart
from steptally.tally import Tally

EMPTY_ACCOUNTS = ("verdicts", "replay", "what_if", "peers", "waits", "collectives", "clock")


def measured(**accounts) -> Tally:
    return Tally(basis="measured", accounts=accounts)


@pytest.mark.parametrize("tally", [slow_worker_tally, quiet_tally])
def test_every_element_is_closed_and_nothing_is_loaded_from_elsewhere(tally):
    outline = outline_of(tally())
    assert outline.open == []
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", render_html(tally()))


def test_the_verdict_stands_before_the_figures():
    text = outline_of(slow_worker_tally()).text
    assert text.index("slow worker") < text.index("slowdown S")
    assert "pp 0, dp 0 · rank 0 · host node-a · device cuda:0" in text
    assert "mending it recovers 99.8 % of the lost time, 593.8 ms a step" in text


def test_where_nobody_is_slow_the_page_says_what_could_have_been_told():
    text = " ".join(outline_of(quiet_tally()).text.split())
    assert "No straggler found" in text
    assert "less than 1.04× its peers' time" in text


def test_accounts_without_rows_leave_their_sections_out():
    text = outline_of(measured(**{name: [] for name in EMPTY_ACCOUNTS})).text
    assert "No straggler found" in text
    for title in ("Own time over peers'", "Steps measured", "spent in collectives", "Replay"):
        assert title not in text


@pytest.mark.parametrize("where", ["operation", "axis", "evidence", "host", "group"])
def test_hostile_text_is_shown_and_not_obeyed(where):
    outline = outline_of(with_hostile(where))
    assert not {"script", "img"} & set(outline.tags)
    assert "{{ 7 * 7 }}" in outline.text


def with_hostile(where: str) -> Tally:
    accounts = dict(slow_worker_tally().accounts)
    if where == "operation":
        accounts["peers"] = [replace(row, operation=HOSTILE) for row in accounts["peers"]]
    elif where == "axis":
        accounts["peers"] = [
            replace(row, coordinates={HOSTILE: row.rank}) for row in accounts["peers"]
        ]
    elif where == "group":
        accounts["waits"] = [
            replace(row, group=f"{HOSTILE} {row.rank % 2}") for row in accounts["waits"]
        ]
    else:
        hostile = {"evidence": (HOSTILE,)} if where == "evidence" else {"host": HOSTILE}
        accounts["verdicts"] = [replace(slow_worker(), **hostile)]
    return measured(**accounts)


def test_every_cell_has_words_and_the_slow_ones_a_number_in_them():
    by_operation, by_step = heat_charts(slow_worker_tally())
    assert len(by_operation.boxes) == 8 * 3
    assert len(by_step.boxes) == 8 * 4
    assert {box.text for box in by_operation.boxes if box.look == "heat-5"} == {"2.00×"}
    assert all(box.words for box in by_operation.boxes)


def test_cells_fill_the_width_and_rows_follow_one_another():
    for chart in heat_charts(slow_worker_tally()):
        assert max(box.x + box.width for box in chart.boxes) == pytest.approx(100, abs=0.1)
        assert max(box.y for box in chart.boxes) + 20 == chart.height


def test_a_page_of_a_thousand_ranks_stays_small():
    operations = tuple((f"op {number}", 10_000_000, 10_000_000) for number in range(10))
    # Every second rank differs, so that as many cells as the limits allow are drawn.
    slow = dict.fromkeys(range(0, 1024, 2), 1.3)
    coordinates = places(tp=8, pp=8, dp=16)
    rows = peer_rows(coordinates, slow=slow, steps=0, operations=operations)
    stepped = peer_rows(coordinates, slow=slow, steps=30, operations=operations[:1])
    tally = measured(verdicts=[], peers=rows + [row for row in stepped if row.step is not None])
    assert sum(len(chart.boxes) for chart in heat_charts(tally)) <= 20_000
    assert len(render_html(tally)) < 4_000_000


def test_of_a_large_map_what_is_as_it_should_be_is_one_background():
    rows = peer_rows(places(dp=100), slow={7: 2.0}, steps=90)
    _, by_step = heat_charts(measured(peers=rows))
    assert {box.words.split(",")[0] for box in by_step.boxes} == {"dp 7 · rank 7"}
    assert "no words of their own" in by_step.note


def test_bars_of_waits_are_to_one_scale_and_name_who_entered_last():
    chart = wait_chart(slow_worker_tally())
    rank_0, rank_2 = chart.lines[0], chart.lines[2]
    assert [segment.words for segment in rank_0.segments] == [
        "exposed wait: 0 ns",
        "exposed transfer: 44.00 ms",
        "wait and transfer that compute hides: 4.000 ms",
    ]
    assert rank_0.last_to_enter == "last in 4 of 4"
    assert sum(segment.width for segment in rank_2.segments) == pytest.approx(100, abs=0.01)


def test_waits_whose_exposed_parts_are_not_told_are_wait_and_transfer():
    rows = [replace(row, exposed_wait_ns=None) for row in wait_rows()]
    chart = wait_chart(measured(waits=rows))
    assert [name for _, name in chart.legend] == ["wait", "transfer"]


def test_of_many_ranks_those_that_wait_most_and_least_are_drawn():
    one = wait_rows()[2]
    chart = wait_chart(
        measured(waits=[replace(one, rank=rank, exposed_wait_ns=rank) for rank in range(1000)])
    )
    ranks = [line.rank for line in chart.lines]
    assert ranks == [*range(MOST_BARS // 2), *range(1000 - MOST_BARS // 2, 1000)]
    assert chart.left_out == 1000 - MOST_BARS


def test_steps_are_drawn_from_zero_so_that_lost_time_is_to_scale():
    plot = replay_plot(measured(replay=replay_rows()))
    heights = {mark.look: 100 - mark.y for mark in plot.marks[:3]}
    # Step 0: 1,300 ms measured, 1,295 ms replayed, 700 ms ideal.
    assert heights["ideal"] / heights["replayed"] == pytest.approx(700 / 1295, rel=1e-3)
    assert heights["measured"] / heights["replayed"] == pytest.approx(1300 / 1295, rel=1e-3)


def test_charts_of_a_tally_of_no_search_are_not_there():
    tally = Tally(basis="measured")
    assert (heat_charts(tally), wait_chart(tally), replay_plot(tally)) == ([], None, None)
