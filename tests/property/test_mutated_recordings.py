"""Five hundred mutated recordings: none crashes or hangs, and what is read is what was recorded.

The recordings are the project's own (tests/data) and, where they are there, real ones of
../shared/traces: some hundred events of each, from its middle. Damage to their structure (cut
files, corrupt archives, missing or mistyped fields, broken nesting) costs the events it hits; the
others equal the undamaged file's, and the losses count the rest.
"""

import gzip
import json
from collections import Counter
from functools import cache

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recordings import DATA, SHARED_TRACES
from steptally.errors import InputError
from steptally.trace.kineto import read_kineto

EVENTS = 120
OWN = [DATA / "tp2_dp2/traces/rank0.json.gz", DATA / "two_groups/traces/rank1.json.gz"]
SHARED = [
    SHARED_TRACES / f"{name}.json.gz"
    for name in (
        "dlrm_v100_8ranks/rank3",
        "a100_nccl_args",
        "mi300_unlinked_kernels",
        "2022_dialect",
    )
]
RECORDINGS = st.sampled_from([*OWN, *(path for path in SHARED if path.is_file())])
# What a row is by itself; steps and groups are concluded from other rows.
OWN_COLUMNS = ["name", "kind", "process", "thread", "device", "stream", "correlation", "bytes"]
TIMES = ["start_ns", "end_ns"]

thorough = settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))


@cache
def content(path):
    """The recording with its kernels and some of what stands around them, as a JSON value."""
    whole = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    events = whole["traceEvents"]
    work = [n for n, event in enumerate(events) if event.get("cat") in ("kernel", "cpu_op")]
    middle = max(0, work[len(work) // 2] - EVENTS // 2)
    return whole | {"traceEvents": events[middle : middle + EVENTS]}


@cache
def spelled(path, indent=None):
    return json.dumps(content(path), indent=indent).encode()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated") / "rank0.json"


@pytest.fixture(scope="module")
def undamaged(file):
    """The rows of each recording as it is, and their number."""

    @cache
    def read_once(path):
        trace = read(file, spelled(path))
        assert trace.losses == ()
        return rows(trace, path)

    return read_once


def read(file, data):
    """The trace, or None where it is refused in one sentence; anything else is a fault."""
    file.write_bytes(data)
    try:
        return read_kineto(file)
    except InputError as error:
        sentence = str(error)
    assert str(file) in sentence
    assert "\n" not in sentence
    return None


def rows(trace, path):
    """How often each row is there, on the clock of the file without its base.

    The base stands at the end of a file, where it is lost with whatever else stands there.
    """
    base_ns = content(path).get("baseTimeNanoseconds", 0)
    shift = base_ns if (trace.events["start_ns"] >= base_ns).any() else 0
    table = trace.events.select(pl.col(*TIMES) - shift, *OWN_COLUMNS)
    return Counter(table.iter_rows())


def lost_events(trace):
    """The events said to be lost; one whose category was hit is left out with a warning."""
    unknown = sum("which steptally does not know" in warning for warning in trace.warnings)
    return sum(loss.events for loss in trace.losses) + unknown


@thorough
@given(RECORDINGS, st.sampled_from([None, 1]), st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_the_whole_ones_beginning(file, undamaged, path, indent, share):
    text = spelled(path, indent)
    cut = int(len(text) * share)
    trace = read(file, text[:cut])
    starts = [text.index(b'"traceEvents"'), text.rindex(b'"ph"')]
    if trace is None:
        assert cut < starts[1]
        return
    assert rows(trace, path) <= undamaged(path)
    if cut < starts[1]:
        assert any("the file ends before its events do" in loss.reason for loss in trace.losses)


@thorough
@given(RECORDINGS, st.data())
def test_a_corrupt_archive_gives_what_could_be_inflated(file, undamaged, path, data):
    packed = bytearray(gzip.compress(spelled(path), mtime=0))
    where = data.draw(st.integers(12, len(packed) - 9))
    if data.draw(st.booleans()):
        packed = packed[:where]
    else:
        packed[where] ^= data.draw(st.integers(1, 255))
    trace = read(file, bytes(packed))
    if trace is None:
        return
    kept, whole = rows(trace, path), undamaged(path)
    assert trace.losses or kept == whole  # some bits of an archive mean nothing
    # What corrupt data inflate to may be other text, until the archive itself breaks.
    assert (kept - whole).total() <= EVENTS // 8


FIELDS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
ARGUMENTS = ["device", "stream", "correlation", "bytes", "grid", "graph id", "Input Dims", "Seq"]
VALUES = [None, True, [], {}, [[]], -1, 2**70, 1e300, "", "x", {"a": [1]}, "\ud800", 0.5]


@thorough
@given(RECORDINGS, st.integers(0, EVENTS - 1), st.sampled_from(FIELDS + ARGUMENTS), st.data())
def test_a_missing_or_mistyped_field_costs_its_own_event_at_most(
    file, undamaged, path, number, field, data
):
    document = content(path)
    events = list(document["traceEvents"])
    event = dict(events[number])
    holder = event
    if field in ARGUMENTS:
        holder = event["args"] = dict(event.get("args", {}))
    if data.draw(st.booleans()):
        holder.pop(field, None)
    else:
        holder[field] = data.draw(st.sampled_from(VALUES))
    events[number] = event
    trace = read(file, json.dumps(document | {"traceEvents": events}).encode())
    kept, whole = rows(trace, path), undamaged(path)
    assert (whole - kept).total() <= 1
    assert (kept - whole).total() <= 1
    # Another phase or category is another kind of event, not damage.
    if field not in ("ph", "cat"):
        assert kept.total() >= whole.total() - lost_events(trace)


@thorough
@given(RECORDINGS, st.sampled_from([None, 1]), st.data())
def test_broken_nesting_costs_the_events_it_hits(file, undamaged, path, indent, data):
    text = spelled(path, indent)
    begin, end = text.index(b"[", text.index(b'"traceEvents"')) + 1, text.rindex(b'"ph"')
    places = [n for n in range(begin, end) if text[n : n + 1] in b'{}[],:"']
    where = data.draw(st.sampled_from(places))
    junk = data.draw(st.sampled_from([b"", b"{", b"}", b"[", b"]", b",", b'"', b"\x00", b"\xff"]))
    damaged = text[:where] + junk + text[where + data.draw(st.sampled_from([0, 1])) :]
    trace = read(file, damaged)
    kept, whole = rows(trace, path), undamaged(path)
    # The hit event, and a neighbour that a stray quote or bracket joins to it, may read as others.
    assert (kept - whole).total() <= 1
    assert (whole - kept).total() <= 3
    assert kept.total() >= whole.total() - lost_events(trace)


@thorough
@given(RECORDINGS, st.data())
def test_a_torn_out_piece_costs_what_it_touched(file, undamaged, path, data):
    text = spelled(path)
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"}]")
    start = data.draw(st.integers(begin, end))
    stop = data.draw(st.integers(start, min(end, start + 2000)))
    junk = data.draw(st.sampled_from([b"", b"\0" * 9, b"\n", b"NaN", b"\xc3", bytes(range(256))]))
    trace = read(file, text[:start] + junk + text[stop:])
    if trace is None:
        assert stop - start > (end - begin) // 2
        return
    kept, whole = rows(trace, path), undamaged(path)
    assert (kept - whole).total() <= 1  # the two ends of the tear may make one event
    touched = text[start:stop].count(b'"ph"') + 3
    assert (whole - kept).total() <= touched


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "nan", "inf", "-nan"])
@pytest.mark.parametrize("path", OWN, ids=lambda path: path.parts[-3])
def test_numbers_that_json_has_not_cost_no_event(file, undamaged, path, number):
    text = spelled(path).replace(
        b'"args": {', b'"args": {"est. achieved occupancy %%": %s, ' % number.encode()
    )
    trace = read(file, text)
    assert rows(trace, path) == undamaged(path)
    assert trace.losses == ()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.parts[-3])
def test_a_byte_order_mark_and_keys_written_twice_cost_nothing(file, undamaged, path):
    text = spelled(path).replace(b'"ph": "X"', b'"ph": "M", "ph": "X"')
    trace = read(file, b"\xef\xbb\xbf" + text)
    assert rows(trace, path) == undamaged(path)
    assert trace.losses == ()
