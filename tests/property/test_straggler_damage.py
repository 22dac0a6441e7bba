"""Damaged recordings of several ranks: what is read of them is paired or refused, never a crash."""

import gzip
import json
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.recordings import recorded_run

from steptally.errors import InputError
from steptally.measure.stragglers.extract import ExtractOptions, extract
from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.waits import collective_rows, last_to_enter, wait_rows, waits
from steptally.trace.kineto import read_kineto

ARGUMENTS = [
    "Collective name",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Group size",
    "In msg bytes",
    "Seq",
    "Src Rank",
    "Dst Rank",
]
VALUES = [
    None, True, -1, 0, 7, 2**40, 2**63 - 1, 2**70, 0.5, "", "x", [], {}, "[0, 1]", "[1, 0]",
    "[0, 0]", "[-3, 1]", "[0, 99999999999]", "[0, 8, 16, ..., 1016]", '["a"]', "all_to_allv",
    "allgather_", "send", "recv_", "barrier",
]  # fmt: skip
TIMES = [0, -1, 0.001, 1e9, 4e18, "7", None]
changes = st.one_of(
    st.tuples(st.just("argument"), st.sampled_from(ARGUMENTS), st.sampled_from(VALUES)),
    st.tuples(st.just("event"), st.sampled_from(["ts", "dur"]), st.sampled_from(TIMES)),
    st.tuples(st.just("event"), st.sampled_from(["tid", "name", "cat"]), st.sampled_from(VALUES)),
    st.tuples(st.just("drop"), st.just(""), st.just(None)),
)
thorough = settings(
    max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck)
)  # fmt: skip


@cache
def whole(name, rank):
    packed = recorded_run(name).trace(rank).read_bytes()
    return gzip.decompress(packed).decode()


def communicates(event):
    name = str(event.get("name"))
    return name.startswith(("steptally::", "gloo:", "c10d::", "ProfilerStep"))


def damaged(name, rank, edits):
    """The file with these (place, change) made to the events that communicate."""
    content = json.loads(whole(name, rank))
    events = [event for event in content["traceEvents"] if communicates(event)]
    dropped = set()
    for share, (what, key, value) in edits:
        event = events[int(share * len(events))]
        if what == "drop":
            dropped.add(id(event))
        else:
            (event if what == "event" else event.setdefault("args", {}))[key] = value
    content["traceEvents"] = [one for one in content["traceEvents"] if id(one) not in dropped]
    return json.dumps(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@thorough
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), changes), min_size=1, max_size=12),
)
def test_damage_to_what_communicates_is_survived(folder, edits):
    recorded = []
    for rank in (0, 1):
        path = folder / f"rank{rank}.json"
        path.write_text(damaged("pp2", rank, edits) if rank else whole("pp2", rank))
        try:
            recorded.append(extract(read_kineto(path), rank, ExtractOptions()))
        except InputError:
            return
    together = on_one_clock(recorded)
    rows = waits(recorded, together.pairing, together.clocks)
    assert (rows["wait_ns"] >= 0).all()
    assert (rows["wait_ns"] + rows["transfer_ns"] == rows["leave_ns"] - rows["enter_ns"]).all()
    assert (rows["exposed_wait_ns"] <= rows["wait_ns"]).all()
    assert len(collective_rows(rows)) == rows["instance"].n_unique()
    assert sum(last_to_enter(rows).values()) <= rows["instance"].n_unique()
    assert len(wait_rows(rows)) <= len(rows)
    assert all(one.sentence() for one in together.pairing.refused)


@pytest.mark.parametrize("ranks", ["[0, 99999999999]", "[-3, 1]", '["a"]', "[0, 0]", [], 7])
def test_members_that_are_no_ranks_are_not_told(folder, ranks):
    content = json.loads(whole("pp2", 1))
    for one in content["traceEvents"]:
        if one.get("name") == "steptally::collective":
            one["args"]["Process Group Ranks"] = ranks
    path = folder / "rank1.json"
    path.write_text(json.dumps(content))
    recorded = [
        extract(read_kineto(recorded_run("pp2").trace(0)), 0, ExtractOptions()),
        extract(read_kineto(path), 1, ExtractOptions()),
    ]
    told = recorded[1].communications["members"].drop_nulls()
    assert all(0 <= min(own) <= max(own) < 2 for own in told)
    on_one_clock(recorded)
