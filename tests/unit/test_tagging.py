"""Every collective of a traced step names its group, its sizes and its number, on both ranks."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptally.trace.run_directory import RunDirectory

LOOP = Path(__file__).with_name("tagged_loop.py")

# One step of tagged_loop.py, in order: c10d's operator, elements in, elements out, dtype.
# Elements: 64 floats; halves and doubles for reduce-scatter and all-gather over 2 ranks; the
# coalesced call sends 10 + 30; the gradient is 2 x 3.
EXPECTED = [
    ("allreduce_", 64, 64, "Float"),
    ("allreduce_", 64, 64, "Float"),
    ("_reduce_scatter_base_", 64, 32, "Float"),
    ("_allgather_base_", 64, 128, "Float"),
    ("alltoall_base_", 64, 64, "Float"),
    ("allgather_", 64, 128, "Float"),
    ("broadcast_", 4, 4, "Long"),
    ("allreduce_coalesced_", 40, 40, "Float"),
    ("send", 5, 5, "BFloat16"),
    ("recv_", 5, 5, "BFloat16"),
    ("allreduce_", 6, 6, "Float"),
    ("allreduce_", 64, 64, "Float"),
    ("barrier", 0, 0, None),
]
BYTES = {"Float": 4, "Long": 8, "BFloat16": 2, None: 0}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The events of each rank, in order of time."""
    directory = tmp_path_factory.mktemp("tagged") / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(LOOP), str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for rank, path in RunDirectory(directory).traces().items():
        content = json.loads(gzip.decompress(path.read_bytes()))
        complete = [event for event in content["traceEvents"] if event.get("ph") == "X"]
        found[rank] = sorted(complete, key=lambda event: event["ts"])
    return found


def within(events, step):
    """The events of one traced step."""
    (mark,) = [event for event in events if event["name"] == f"ProfilerStep#{step}"]
    end = mark["ts"] + mark["dur"]
    return [event for event in events if mark["ts"] <= event["ts"] <= end and event is not mark]


def tags(events):
    return [event["args"] for event in events if event["name"] == "steptally::collective"]


@pytest.mark.processes
def test_each_call_is_tagged_once_with_its_sizes_in_the_order_of_the_program(traces):
    for rank in (0, 1):
        for step in (2, 3, 5):
            found = [
                (
                    tag["Collective name"],
                    tag["In msg nelems"],
                    tag["Out msg nelems"],
                    tag.get("dtype"),
                )
                for tag in tags(within(traces[rank], step))
            ]
            assert found == EXPECTED


@pytest.mark.processes
def test_bytes_are_elements_times_the_size_of_the_dtype(traces):
    for tag in tags(traces[0]):
        assert tag["In msg bytes"] == tag["In msg nelems"] * BYTES[tag.get("dtype")]
        assert tag["Out msg bytes"] == tag["Out msg nelems"] * BYTES[tag.get("dtype")]


@pytest.mark.processes
def test_the_group_carries_the_name_and_the_ranks_it_was_made_with(traces):
    groups = {
        (tag["Process Group Description"], tag["Process Group Ranks"], tag["Group size"])
        for tag in tags(traces[1])
        if tag["Collective name"] not in ("send", "recv_")
    }
    assert groups == {("TENSOR_MODEL_PARALLEL_GROUP", "[0, 1]", 2)}


@pytest.mark.processes
def test_both_ranks_number_the_same_call_alike_from_zero_and_through_all_windows(traces):
    numbers = []
    for rank in (0, 1):
        collectives = [tag for tag in tags(traces[rank]) if "Src Rank" not in tag]
        numbers.append([(tag["Collective name"], tag["Seq"]) for tag in collectives])
    assert numbers[0] == numbers[1]
    assert [number for _, number in numbers[0]] == list(range(3 * 11))


@pytest.mark.processes
def test_a_message_has_the_same_number_where_it_is_sent_and_where_it_is_received(traces):
    def messages(rank, name):
        return [
            (tag["Src Rank"], tag["Dst Rank"], tag["Seq"])
            for tag in tags(traces[rank])
            if tag["Collective name"] == name
        ]

    assert messages(0, "send") == messages(1, "recv_") == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]
    assert messages(1, "send") == messages(0, "recv_") == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]


@pytest.mark.processes
def test_every_call_is_waited_for_in_an_event_on_the_thread_that_waits(traces):
    step = within(traces[0], 2)
    main = next(event["tid"] for event in traces[0] if event["name"] == "ProfilerStep#2")
    waits = [event for event in step if event["name"] == "steptally::wait"]
    assert len(waits) == len(EXPECTED)
    assert {event["tid"] for event in waits} == {main}


@pytest.mark.processes
def test_gloos_own_events_are_there_once_for_each_tag(traces):
    step = within(traces[0], 3)
    gloo = [event["name"] for event in step if event["name"].startswith("gloo:")]
    assert len(gloo) == len(tags(step))
    # gloo reduce-scatters by an all-reduce: 5 all-reduces of the program, and that one.
    assert gloo.count("gloo:all_reduce") == 6
