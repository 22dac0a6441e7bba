"""Whatever stands in a trace, its account is made without a traceback, and its sums hold."""

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from device_traces import call, kernel, nccl, operator, step
from device_traces import copy as device_copy
from steptally.errors import InputError
from steptally.measure.trace_account import TraceOptions, account_for_trace
from steptally.measure.trace_tally import TraceMerge, rank_objects, trace_tally
from steptally.trace.kinds import load_rules
from steptally.trace.kineto import read_kineto

GROUP = ("3", "TENSOR_MODEL_PARALLEL_GROUP")
SOUND = [
    *step(1, 0, 100),
    *step(2, 100, 200),
    *operator("aten::mm", 0, 9, [[4, 8], [8, 16]], ["float", "float"]),
    *kernel("sgemm", 10, 40, launched=2, grid=[1, 1, 1], block=[32, 1, 1]),
    *nccl(30, 50, launched=6, group=GROUP),
    *device_copy(60, 70, launched=8),
    *kernel("elementwise", 110, 120, launched=90),
    *kernel("layer_norm", 121, 130, launched=95),
    *kernel("sgemm", 150, 160, launched=140, launch="cudaGraphLaunch"),
    call("cudaDeviceSynchronize", 131, 139),
    *nccl(150, 170, launched=141, group=("5", "undefined"), ranks=(0, 2)),
]

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(allow_nan=False),
    st.sampled_from(
        [
            "",
            "7",
            "stream 7",
            "ProfilerStep#1",
            "ProfilerStep#" + "9" * 25,
            "[[",
            "[[4, 8], [8, 0]]",
            "-1",
            "1e300",
        ]
    ),
    st.lists(st.integers(-3, 2**40), max_size=4),
    st.just({}),
)
fields = st.sampled_from(
    ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "device", "stream", "correlation",
     "grid", "block", "Input Dims", "Input type", "Process Group Ranks", "Process Group Name",
     "Process Group Description", "Group size", "graph id", "bytes"]
)  # fmt: skip
changes = st.lists(
    st.tuples(st.integers(0, len(SOUND) - 1), fields, st.booleans(), odd_values), max_size=6
)


def changed(changes_made):
    events = copy.deepcopy(SOUND)
    for place, field, dropped, value in changes_made:
        event = events[place]
        if field not in event and isinstance(event.get("args"), dict):
            event = event["args"]
        if dropped:
            event.pop(field, None)
        else:
            event[field] = value
    return events


@settings(max_examples=100)
@given(changes)
def test_odd_fields_break_no_account(tmp_path_factory, changes_made):
    path = tmp_path_factory.mktemp("odd") / "rank0.json"
    path.write_text(json.dumps({"traceEvents": changed(changes_made)}))
    try:
        trace = read_kineto(path)
    except InputError:
        return
    assert_accountable(trace)


edits = st.lists(
    st.tuples(
        st.sampled_from(("cut", "drop", "repeat", "write")),
        st.floats(0, 1),
        st.integers(1, 300),
        st.binary(min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150)
@given(edits)
def test_odd_bytes_break_no_account(tmp_path_factory, edits_made):
    text = json.dumps({"traceEvents": SOUND}, indent=1).encode()
    for how, place, length, written in edits_made:
        at = int(place * len(text))
        text = {
            "cut": text[:at],
            "drop": text[:at] + text[at + length :],
            "repeat": text[:at] + text[at : at + length] + text[at:],
            "write": text[:at] + written + text[at + len(written) :],
        }[how]
    path = tmp_path_factory.mktemp("odd") / "rank0.json"
    path.write_bytes(text)
    try:
        trace = read_kineto(path)
    except InputError:
        return
    assert_accountable(trace)


def assert_accountable(trace):
    """The account is made, can be printed, and its sums hold."""
    account = account_for_trace(trace, 0, TraceOptions(rules=load_rules()))
    merge = TraceMerge()
    merge.add(account)
    tally = trace_tally(merge)
    json.loads(tally.dumps())
    for one in rank_objects(tally):
        for row in (one, *one["steps"]):
            assert row["busy_ns"] + row["idle_ns"] == row["span_ns"]
            assert row["overlap_ns"] + row["exposed_ns"] == row["communication_ns"]
            assert 0 <= row["overlap_ns"] <= min(row["compute_ns"], row["communication_ns"])
        if one["gaps"]:
            assert one["gaps"]["idle_ns"] == one["idle_ns"]
