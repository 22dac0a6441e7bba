"""The Perfetto file: every event is drawn, none hides another, and it can be read back."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import SHARED_TRACES, needs_shared_traces, recorded_trace
from steptally.errors import WriteError
from steptally.trace.kineto import read_kineto
from steptally.trace.lanes import flat_lanes, nested_lanes
from steptally.trace.perfetto import Track, device_tracks, write_perfetto

KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}


def device_trace(tmp_path, *spans):
    """A trace of kernels on one stream: name, start and duration in microseconds."""
    events = [{**KERNEL, "name": n, "ts": ts, "dur": dur} for n, ts, dur in spans]
    path = tmp_path / "rank3.json"
    path.write_text(
        json.dumps({"traceEvents": events, "baseTimeNanoseconds": 1_711_964_646 * 10**9})
    )
    return read_kineto(path)


def drawn(path):
    return json.loads(path.read_text())["traceEvents"]


def complete(path):
    return [event for event in drawn(path) if event["ph"] == "X"]


def test_every_event_is_drawn_once_and_the_file_reads_back(tmp_path):
    trace = recorded_trace("tp2_dp2", 0)
    path = tmp_path / "step.json"
    write_perfetto(path, [(trace, [])])
    again = read_kineto(path)
    columns = ["start_ns", "end_ns", "name"]
    order = [*columns, "kind"]
    wanted = trace.events.select(columns).sort(columns)
    assert again.events.select(columns).sort(columns).equals(wanted)
    assert set(order) <= set(again.events.columns)
    assert again.losses == ()


@needs_shared_traces
def test_a_real_devices_shares_are_the_same_from_its_own_drawing(tmp_path):
    trace = read_kineto(SHARED_TRACES / "a100_nccl_args.json.gz")
    path = tmp_path / "drawn.json.gz"
    write_perfetto(path, [(trace, device_tracks(trace))])
    again = read_kineto(path)
    columns = ["kind", "start_ns", "end_ns", "name", "correlation", "bytes"]
    work = pl.col("kind").is_in(["compute", "communication", "copy", "memset"])
    assert (
        again.events.filter(work)
        .select(columns)
        .sort(columns)
        .equals(trace.events.filter(work).select(columns).sort(columns))
    )


def test_overlapping_kernels_of_one_stream_are_on_tracks_of_their_own(tmp_path):
    trace = device_trace(tmp_path, ("a", 0, 10), ("b", 8, 4), ("c", 9, 1), ("d", 12, 3))
    path = tmp_path / "drawn.json"
    write_perfetto(path, [(trace, [])])
    tracks = {event["name"]: event["tid"] for event in complete(path)}
    assert len({tracks["a"], tracks["b"], tracks["c"]}) == 3
    assert tracks["d"] == tracks["a"]
    names = [e["args"]["name"] for e in drawn(path) if e["name"] == "thread_name"]
    assert names == [
        "device 0 stream 7",
        "device 0 stream 7, overlapping (2)",
        "device 0 stream 7, overlapping (3)",
    ]


def test_added_tracks_stand_first_and_on_the_same_clock(tmp_path):
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()"
    trace = device_trace(tmp_path, ("gemm", 0, 10), (nccl, 6, 10))
    tracks = device_tracks(trace)
    assert [track.name for track in tracks] == ["exposed communication", "group unattributed"]
    path = tmp_path / "drawn.json"
    write_perfetto(path, [(trace, tracks)])
    exposed, group = (event for event in complete(path) if event["cat"] == "steptally")
    assert (exposed["ts"], exposed["dur"]) == (10, 6)
    assert (group["ts"], group["dur"]) == (6, 10)
    assert exposed["tid"] < group["tid"] < complete(path)[-1]["tid"]


def test_ranks_are_processes_on_one_clock(tmp_path):
    early, late = (device_trace(tmp_path, ("k", ts, 1)) for ts in (5, 7))
    path = tmp_path / "drawn.json"
    write_perfetto(
        path, [(late, []), (early, [Track(name="x", intervals=np.empty((0, 2)), labels=[])])]
    )
    assert [(event["pid"], event["ts"]) for event in complete(path)] == [(0, 0.0), (1, -2.0)]
    names = [e["args"]["name"] for e in drawn(path) if e["name"] == "process_name"]
    assert names == ["rank 3", "rank 3"]


def test_names_that_json_must_escape_are_drawn_as_they_are(tmp_path):
    trace = device_trace(tmp_path, ('a "quoted\\ \n name é', 0, 1))
    path = tmp_path / "drawn.json"
    write_perfetto(path, [(trace, [])])
    assert complete(path)[0]["name"] == 'a "quoted\\ \n name é'


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        write_perfetto(tmp_path / "file" / "x.json", [])


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=40).map(
    lambda pairs: sorted(((a, a + d) for a, d in pairs), key=lambda s: (s[0], -s[1]))
)


def columns_of(pairs):
    return (np.array([pair[place] for pair in pairs], dtype=np.int64) for place in (0, 1))


@given(spans)
def test_no_two_events_of_a_flat_lane_overlap_and_no_lane_is_spare(pairs):
    start, end = columns_of(pairs)
    lanes = flat_lanes(start, end)
    for lane in set(lanes.tolist()):
        own = lanes == lane
        assert (start[own][1:] >= end[own][:-1]).all()
    # An event without length takes its place like any other.
    deepest = max(((start <= t) & ((t < end) | (t == start))).sum() for t in range(81))
    assert len(set(lanes.tolist())) <= max(deepest, 1)


@given(spans)
def test_any_two_events_of_a_nested_lane_are_apart_or_one_holds_the_other(pairs):
    start, end = columns_of(pairs)
    lanes = nested_lanes(start, end)
    rows = list(zip(start.tolist(), end.tolist(), lanes.tolist(), strict=True))
    for place, (begins, ends, lane) in enumerate(rows):
        for after, until, other in rows[place + 1 :]:
            if lane == other:
                assert after >= ends or until <= ends, (begins, ends, after, until)
