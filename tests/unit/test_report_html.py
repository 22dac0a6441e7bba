"""The HTML page opens offline, is well-formed, and shows hostile text as text."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.synthetic_tally import killed_tally, predicted_tally, recorded_tally

from steptally.report.html import render_html
from steptally.report.html_charts import bars_chart, loss_plot, steps_plot, ticks
from steptally.report.rank_bars import rank_bars
from steptally.report.step_points import step_points
from steptally.tally import Tally

VOID = {"meta", "link", "br", "img", "hr", "input"}
HOSTILE = '<script>alert("1")</script>\'"><img src=x onerror=alert(2)>{{ 7 * 7 }}'


class Outline(HTMLParser):
    """Keeps the open elements, and fails where a closing one does not match."""

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.tags = [], [], []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text += data


def outline_of(tally: Tally) -> Outline:
    outline = Outline()
    outline.feed(render_html(tally))
    outline.close()
    return outline


@pytest.mark.parametrize("tally", [recorded_tally, predicted_tally, killed_tally])
def test_every_element_is_closed_in_order(tally):
    assert outline_of(tally()).open == []


def test_an_empty_tally_makes_a_page_too():
    assert "unnamed job" in outline_of(Tally(basis="measured")).text


def test_nothing_is_loaded_from_elsewhere():
    page = render_html(recorded_tally())
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", page)
    outline = outline_of(recorded_tally())
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    loading = [value for name, value in outline.attributes if name in ("src", "href")]
    assert all(value.startswith("#") for value in loading)


@pytest.mark.parametrize("place", ["name", "group", "warning", "convention", "setting"])
def test_hostile_text_is_shown_and_not_obeyed(place):
    outline = outline_of(with_hostile_text(place))
    assert not {"script", "img"} & set(outline.tags)
    assert "{{ 7 * 7 }}" in outline.text


def with_hostile_text(place: str) -> Tally:
    tally = recorded_tally()
    if place == "name":
        return replace(tally, job={**tally.job, "name": HOSTILE})
    if place == "group":
        rows = [replace(row, group=HOSTILE) for row in tally.accounts["traffic"]]
        return replace(tally, accounts={**tally.accounts, "traffic": rows})
    if place == "warning":
        return replace(tally, warnings=(HOSTILE,))
    if place == "convention":
        figure = replace(tally.summary["mfu"], convention=HOSTILE)
        return replace(tally, summary={"mfu": figure})
    return replace(tally, job={**tally.job, "recipe": {HOSTILE: True}})


def test_every_chart_has_words_for_those_who_do_not_see_it():
    page = render_html(recorded_tally())
    charts = re.findall(r'<svg role="img" aria-label="([^"]+)"', page)
    assert len(charts) == 6  # four ranks, the step times, the loss
    assert "exposed TENSOR_MODEL_PARALLEL_GROUP: 221.0 ms, 17.0 %" in charts[0]


def test_every_figure_of_the_summary_is_on_the_page_with_basis_and_convention():
    text = outline_of(recorded_tally()).text
    for key, figure in recorded_tally().summary.items():
        assert key in text
        assert figure.convention in text
        assert figure.origin in text


def test_the_exact_integer_stands_beside_the_rounded_one():
    text = outline_of(recorded_tally()).text
    assert "7.491e10 FLOP" in text
    assert "74,906,075,136 FLOP" in text


def test_segments_of_a_bar_follow_one_another_and_the_longest_bar_fills_the_width():
    chart = bars_chart(rank_bars(recorded_tally()))
    for line in chart.lines:
        edge = 0.0
        for segment in line.segments:
            assert segment.x == pytest.approx(edge, abs=0.01)
            edge = segment.x + segment.width
    ends = [line.segments[-1].x + line.segments[-1].width for line in chart.lines]
    assert max(ends) == pytest.approx(100, abs=0.01)


def test_a_warm_up_step_far_above_the_others_is_cut_and_says_so():
    plot = steps_plot(step_points(recorded_tally()))
    first = plot.marks[0]
    assert (first.look, first.y) == ("warm-up", 0.0)
    assert first.words.endswith("outside the scale")
    assert all(0 <= mark.y <= 100 and 0 <= mark.x <= 100 for mark in plot.marks)


def test_a_loss_that_is_not_a_number_is_left_out_of_the_curve():
    plot = loss_plot([(1, 5.0), (2, float("nan")), (3, 4.0)])
    assert [mark.words for mark in plot.marks] == ["step 1: 5.0000", "step 3: 4.0000"]


def test_one_loss_is_no_curve():
    assert loss_plot([(1, 5.0)]) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (1.18, 1.27, [1.18, 1.2, 1.22, 1.24, 1.26]), (3, 3, [3])],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert ticks(low, high, 5) == pytest.approx(expected)
