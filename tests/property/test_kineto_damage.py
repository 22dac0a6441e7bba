"""A damaged trace is read as far as it goes: the events that remain are right, the loss is stated.

The recordings are the project's own (tests/data) and a small one made here, mutated in every way.
"""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import recorded_run
from steptally.errors import InputError
from steptally.trace import kineto_blocks
from steptally.trace.kineto import read_kineto

EVENTS = [
    {
        "ph": "X",
        "cat": "kernel",
        "name": f'kernel {number} {{, [ \\" é',
        "pid": 0,
        "tid": 7,
        "ts": 10 * number,
        "dur": 5,
        "args": {"device": 0, "stream": 7, "grid": [1, 2, number]},
    }
    for number in range(30)
]
CONTENT = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 3},
    "traceEvents": EVENTS,
    "INFO": ["a", "b"],
    "baseTimeNanoseconds": 1_000_000,
}
# Kineto's own layout breaks lines inside events; others write none.
TEXTS = [json.dumps(CONTENT).encode(), json.dumps(CONTENT, indent=2).encode()]
PLAIN = {event["name"]: (1000 * event["ts"], event["ts"] * 1000 + 5000) for event in EVENTS}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "trace.json"


def read(path, data):
    """The trace, or None where it is refused; anything else is a fault."""
    path.write_bytes(data)
    try:
        return read_kineto(path)
    except InputError:
        return None


def assert_events_are_right(trace):
    """Whatever was read is what was written, on the file's clock or (its base lost) without."""
    starts = trace.events["start_ns"]
    base = 1_000_000 if starts.len() and starts.min() >= 1_000_000 else 0
    for name, start, end in trace.events.select("name", "start_ns", "end_ns").iter_rows():
        assert PLAIN[name] == (start - base, end - base)


@given(st.sampled_from(TEXTS), st.data())
def test_a_file_cut_anywhere_gives_every_whole_event_and_says_that_it_was_cut(path, text, data):
    cut = data.draw(st.integers(0, len(text) - 1))
    trace = read(path, text[:cut])
    whole = sum(text.index(json.dumps(event["name"]).encode()) < cut for event in EVENTS)
    if trace is None:
        assert whole <= 1
        return
    assert_events_are_right(trace)
    assert len(trace.events) in (whole - 1, whole)
    assert trace.losses


@given(st.sampled_from(TEXTS), st.data())
def test_overwritten_bytes_cost_the_events_they_hit_and_no_others(path, text, data):
    where = data.draw(st.integers(0, len(text) - 1))
    junk = data.draw(st.sampled_from([b"\x00", b"\xff", b"\n", b'"', b"}", b"]", b",", b"{", b"x"]))
    damaged = text[:where] + junk + text[where + 1 :]
    trace = read(path, damaged)
    if trace is None:
        return
    untouched = [
        name
        for name in PLAIN
        if (spelled := json.dumps(name).encode()) in damaged
        and not _event_span(text, spelled)[0] <= where < _event_span(text, spelled)[1]
    ]
    # A stray quote or bracket can swallow the neighbour, never more.
    read_names = set(trace.events["name"])
    assert len(set(untouched) - read_names) <= 1
    if len(trace.events) < len(EVENTS) - 1:
        assert trace.losses


def _event_span(text, spelled_name):
    name = text.index(spelled_name)
    start = text.rindex(b'"ph"', 0, name)
    following = text.find(b'"ph"', name)
    return start - 8, following if following >= 0 else len(text)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read_but_never_crash(path, data):
    read(path, data)
    read(path, b'{"traceEvents": [' + data)
    read(path, b"\x1f\x8b" + data)


@given(st.data())
def test_a_gzip_file_that_is_cut_or_corrupt_gives_what_could_be_inflated(path, data):
    packed = gzip.compress(TEXTS[0], mtime=0)
    where = data.draw(st.integers(11, len(packed) - 9))
    damaged = data.draw(
        st.sampled_from([packed[:where], packed[:where] + b"\x00" + packed[where + 1 :]])
    )
    trace = read(path, damaged)
    if trace is None or damaged == packed:
        return
    # Corrupt data may inflate to other text: events then are lost, or their digits changed.
    assert len(trace.events) <= len(EVENTS)
    assert trace.losses


FIELDS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
VALUES = st.sampled_from([None, True, [], {}, "", "x", -1, 2**70, 1e300, {"stream": []}])


@given(FIELDS, VALUES, st.integers(0, len(EVENTS) - 1))
def test_a_field_of_the_wrong_type_costs_at_most_its_own_event(path, field, value, number):
    events = [dict(event) for event in EVENTS]
    events[number][field] = value
    trace = read(path, json.dumps({"traceEvents": events}).encode())
    others = {event["name"] for event in EVENTS} - {EVENTS[number]["name"]}
    assert others <= set(trace.events["name"])
    own = [row for row in trace.events.iter_rows(named=True) if row["name"] not in others]
    assert all(row["end_ns"] >= row["start_ns"] for row in own)


@given(FIELDS, st.integers(0, len(EVENTS) - 1))
def test_a_missing_field_costs_at_most_its_own_event(path, field, number):
    events = [dict(event) for event in EVENTS]
    del events[number][field]
    trace = read(path, json.dumps({"traceEvents": events}).encode())
    assert {event["name"] for event in EVENTS} - {EVENTS[number]["name"]} <= set(
        trace.events["name"]
    )


def test_raw_control_characters_in_a_name_cost_nothing(path):
    # Invalid JSON that torch has written: pytorch issues 130622 and 136180.
    text = TEXTS[0].replace(b"kernel 4 ", b"kernel\x01\n 4 ")
    trace = read(path, text)
    assert len(trace.events) == len(EVENTS)
    assert trace.losses == ()


@pytest.mark.parametrize("block_bytes", [64, 1000])
def test_damage_in_one_block_of_many_leaves_the_others(path, monkeypatch, block_bytes):
    monkeypatch.setattr(kineto_blocks, "BLOCK_BYTES", block_bytes)
    trace = read(path, TEXTS[0].replace(b'"kernel 4 ', b"kernel 4 "))
    assert {e["name"] for e in EVENTS} - set(trace.events["name"]) == {EVENTS[4]["name"]}
    assert any(loss.size_bytes for loss in trace.losses)
    assert_events_are_right(trace)


@pytest.mark.parametrize("stray", [b"]", b"]}", b'], "x": 1'])
def test_a_stray_end_of_the_events_costs_none_of_those_that_follow(path, stray):
    cut = TEXTS[0].index(b'{"ph": "X"', TEXTS[0].index(b"kernel 7 "))
    trace = read(path, TEXTS[0][:cut] + stray + b", " + TEXTS[0][cut:])
    assert set(trace.events["name"]) == set(PLAIN)
    assert trace.losses
    assert_events_are_right(trace)


def test_a_list_that_was_never_closed_or_ends_with_a_comma_is_read_whole(path):
    events = b",\n".join(json.dumps(event).encode() for event in EVENTS)
    assert read(path, b"[" + events + b",\n]").losses == ()
    unclosed = read(path, b"[" + events + b",\n")
    assert len(unclosed.events) == len(EVENTS)
    assert "ends before its events do" in unclosed.losses[0].reason


@pytest.mark.parametrize(
    "endless",
    [
        b'{"ph": "X", "name": "a' * 3000,
        b'{"ph": "X", "name": "a", "args": ' * 3000,
        b'{"ph":' * 3000,
        b"[" * 100_000,
        b"," * 100_000,
        b"\xff\x00{" * 10_000,
    ],
)
def test_damage_without_end_is_gone_through_and_what_stands_before_it_is_read(path, endless):
    start = b'{"traceEvents": [' + json.dumps(EVENTS[1]).encode() + b", "
    trace = read(path, start + endless)
    assert trace.events["name"].to_list() == [EVENTS[1]["name"]]
    assert trace.losses


def test_a_cut_file_whose_clock_lost_its_base_says_so(path):
    cut = read(path, TEXTS[0][: TEXTS[0].index(b"kernel 9 ")])
    assert any("the base of its clock" in warning for warning in cut.warnings)
    unix = [{**event, "ts": event["ts"] + 1_661_203_462_598_738} for event in EVENTS]
    text = json.dumps({"traceEvents": unix}).encode()
    assert read(path, text[: len(text) // 2]).warnings == ()


def test_events_that_are_not_complete_ones_are_counted(path):
    begin = {**EVENTS[0], "ph": "B"}
    flow = {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g"}
    trace = read(path, json.dumps({"traceEvents": [EVENTS[1], begin, flow]}).encode())
    (loss,) = trace.losses
    assert loss.events == 1
    assert "complete events" in loss.reason


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_real_recording_that_was_cut_is_the_whole_ones_beginning(path, share):
    packed = recorded_run("tp2_dp2").trace(0)
    whole = read_kineto(packed)
    text = gzip.decompress(packed.read_bytes())
    trace = read(path, text[: int(len(text) * share)])
    count = len(trace.events)
    assert 0 < count < len(whole.events)
    columns = ["name", "kind", "thread", "correlation", "bytes"]
    assert trace.events.select(columns).equals(whole.events.head(count).select(columns))
    assert any("ends before its events do" in loss.sentence() for loss in trace.losses)
