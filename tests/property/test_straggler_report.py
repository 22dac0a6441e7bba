"""Whatever a search for stragglers leaves unknown, and however it names things, it is shown."""

import io
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from steptally.report.html import render_html
from steptally.report.terminal import print_tally
from steptally.tally import (
    VERDICT_CLASSES,
    ClockRow,
    CollectiveRow,
    MemberTime,
    PeerRow,
    ReplayRow,
    Tally,
    VerdictRow,
    WaitRow,
    WhatIfRow,
    tally_from_json,
)

# Of a page, what a name must not become: an element, an attribute, a template's expression.
MARKUP = (
    "<script>x</script>",
    "[bold red]x[/]",
    "{{ 7 * 7 }}",
    "\x1b[31m",
    '"><img src=x>',
    "漢字",
)
NAMES = st.sampled_from(MARKUP) | st.text(max_size=12)
NUMBERS = st.integers(min_value=0, max_value=10**13)
SIGNED = st.integers(min_value=-(10**13), max_value=10**13)
RATIOS = st.none() | st.floats(min_value=0, max_value=1e9)
RANKS = st.integers(min_value=0, max_value=40)
AXES = st.sampled_from(("pp", "dp", "tp", "ep", "cp")) | NAMES
COORDINATES = st.dictionaries(AXES, st.integers(min_value=0, max_value=9), max_size=4)
OPTIONAL = st.none() | NUMBERS

MEMBERS = st.builds(
    MemberTime,
    rank=RANKS,
    entered_ns=NUMBERS,
    left_ns=NUMBERS,
    wait_ns=NUMBERS,
    transfer_ns=NUMBERS,
    exposed_wait_ns=OPTIONAL,
    exposed_transfer_ns=OPTIONAL,
)
ROWS = {
    "verdicts": st.builds(
        VerdictRow,
        verdict=st.sampled_from(VERDICT_CLASSES) | NAMES,
        coordinates=COORDINATES,
        ranks=st.lists(RANKS, max_size=20).map(tuple),
        host=st.none() | NAMES,
        device=st.none() | NAMES,
        share_recovered=RATIOS,
        recovered_ns=st.none() | SIGNED,
        factor=RATIOS,
        detectable=RATIOS,
        phase=st.sampled_from(("", "forward", "backward")) | NAMES,
        evidence=st.lists(NAMES, max_size=3).map(tuple),
    ),
    "replay": st.builds(
        ReplayRow,
        step=RANKS,
        measured_ns=NUMBERS,
        replayed_ns=NUMBERS,
        undelayed_ns=NUMBERS,
        ideal_ns=NUMBERS,
        error=st.floats(min_value=-1, max_value=1e6),
        slowdown=st.floats(min_value=0, max_value=1e6),
    ),
    "what_if": st.builds(
        WhatIfRow,
        what=NAMES,
        coordinates=COORDINATES,
        operation=NAMES,
        mended_ns=NUMBERS,
        recovered_ns=SIGNED,
        share_recovered=RATIOS,
    ),
    "peers": st.builds(
        PeerRow,
        rank=RANKS,
        coordinates=COORDINATES,
        operation=NAMES,
        step=st.none() | RANKS,
        own_ns=NUMBERS,
        peers_ns=OPTIONAL,
        ratio=RATIOS,
    ),
    "waits": st.builds(
        WaitRow,
        rank=RANKS,
        group=NAMES,
        axis=st.none() | NAMES,
        instances=NUMBERS,
        last_to_enter=NUMBERS,
        wait_ns=NUMBERS,
        transfer_ns=NUMBERS,
        exposed_wait_ns=OPTIONAL,
        exposed_transfer_ns=OPTIONAL,
    ),
    "collectives": st.builds(
        CollectiveRow,
        step=RANKS,
        group=NAMES,
        axis=st.none() | NAMES,
        collective=NAMES,
        sequence=NUMBERS,
        bytes=OPTIONAL,
        last_to_enter=st.none() | RANKS,
        enter_skew_ns=NUMBERS,
        leave_skew_ns=NUMBERS,
        members=st.lists(MEMBERS, max_size=3).map(tuple),
        missing=RANKS,
    ),
    "clock": st.builds(
        ClockRow,
        rank=RANKS,
        offset_ns=SIGNED,
        drift=st.floats(min_value=-1, max_value=1),
        bound_ns=OPTIONAL,
        collectives=NUMBERS,
        connected=st.booleans(),
        reference_ns=SIGNED,
    ),
}
TALLIES = st.builds(
    Tally,
    basis=st.just("measured"),
    accounts=st.fixed_dictionaries(
        {}, optional={name: st.lists(row, max_size=30) for name, row in ROWS.items()}
    ),
)


class Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self):
        super().__init__()
        self.tags = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)


@given(tally=TALLIES, width=st.integers(min_value=60, max_value=200))
@settings(max_examples=40)
def test_the_terminal_shows_any_search_within_its_width_and_without_control_signs(tally, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_tally(tally, console)
    lines = console.file.getvalue().split("\n")
    assert max(cell_len(line) for line in lines) <= width
    assert "\x1b" not in console.file.getvalue()


@given(tally=TALLIES)
@settings(max_examples=15)
def test_the_page_shows_any_search_and_obeys_none_of_its_names(tally):
    elements = Elements()
    elements.feed(render_html(tally))
    assert not {"script", "img"} & elements.tags


@given(tally=TALLIES)
@settings(max_examples=30)
def test_any_search_is_read_back_from_its_json_as_it_was(tally):
    assert tally_from_json(tally.dumps()).dumps() == tally.dumps()
