"""The shares of a step, on the worked example of docs/formulas/overlap.md and on odd recordings."""

import json
from pathlib import Path

import pytest

from steptally.measure.overlap import step_times, whole_time
from steptally.trace.kineto import read_kineto

DOCUMENT = Path(__file__).parents[2] / "docs" / "formulas" / "overlap.md"
DATA, TENSOR = "DATA_PARALLEL_GROUP_WITH_CP", "TENSOR_MODEL_PARALLEL_GROUP"
MAIN, DATA_WORKER, TENSOR_WORKER = 100, 201, 202


def event(name, start, end, thread=MAIN, category="cpu_op", **arguments):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": arguments,
    }


def collective(group, number, elements, start, end):
    """The recorder's tag and the operator inside it."""
    tag = {
        "Collective name": "allreduce_",
        "Process Group Name": str(number),
        "Process Group Description": group,
        "Group size": 2,
        "In msg nelems": elements,
        "dtype": "Float",
        "Seq": 0,
    }
    return [
        event("steptally::collective", start, end, **tag),
        event("c10d::allreduce_", start, end, **{"Input Dims": [[[elements]]]}),
    ]


def transfer(elements, start, end, thread):
    arguments = {"Input Dims": [[elements]], "Input type": ["float"]}
    return event("gloo:all_reduce", start, end, thread, "user_annotation", **arguments)


def kernel(name, start, end, stream=7, category="kernel", **arguments):
    placed = {"device": 0, "stream": stream, **arguments}
    return event(name, start, end, stream, category, **placed)


WORKED_EXAMPLE = [
    event("ProfilerStep#5", 0, 100, category="user_annotation"),
    event("aten::mm", 0, 30),
    *collective(DATA, 1, 8, 30, 32),
    event("LinearWithGradAccumulationAndAsyncCommunicationBackward", 35, 80),
    *collective(TENSOR, 2, 4, 50, 52),
    event("steptally::wait", 52, 70),
    transfer(8, 32, 60, DATA_WORKER),
    event("aten::copy_", 40, 45, DATA_WORKER),
    transfer(4, 51, 72, TENSOR_WORKER),
]


@pytest.fixture
def recorded(tmp_path):
    def write_and_read(events):
        path = tmp_path / "rank2.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return read_kineto(path)

    return write_and_read


def microseconds(row, *names):
    return tuple(getattr(row, f"{name}_ns") / 1000 for name in names)


SHARES = ("span", "compute", "communication", "overlap", "exposed", "busy", "idle")
GROUP_SHARES = ("communication", "overlap", "exposed", "exposed_alone")


def test_the_worked_example_comes_to_the_documented_shares(recorded):
    (row,) = step_times(recorded(WORKED_EXAMPLE))
    assert (row.rank, row.step) == (2, 5)
    assert microseconds(row, *SHARES) == (100, 55, 40, 17, 23, 78, 22)
    by_group = {group.group: microseconds(group, *GROUP_SHARES) for group in row.groups}
    assert by_group == {DATA: (28, 15, 13, 4), TENSOR: (21, 2, 19, 10)}
    assert [group.instances for group in row.groups] == [1, 1]


def test_the_document_shows_what_the_code_computes(recorded):
    (row,) = step_times(recorded(WORKED_EXAMPLE))
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, number in zip(SHARES, microseconds(row, *SHARES), strict=True):
        assert f"| {name} | {number:.0f} |" in text
    for group in row.groups:
        numbers = " | ".join(f"{n:.0f}" for n in microseconds(group, *GROUP_SHARES))
        assert f"| {group.group} | {numbers} |" in text


def test_a_coalesced_collective_of_several_transfers_is_one_instance(recorded):
    shapes = {"Input Dims": [[[4], [4]], [[8], [8]]]}
    tag = {
        "Collective name": "reduce_scatter_tensor_coalesced_",
        "Process Group Name": "1",
        "Process Group Description": DATA,
        "Group size": 2,
        "In msg nelems": 16,
        "dtype": "Float",
    }
    events = [
        event("ProfilerStep#1", 0, 50, category="user_annotation"),
        event("steptally::collective", 0, 5, **tag),
        event("c10d::reduce_scatter_tensor_coalesced_", 1, 4, **shapes),
        transfer(8, 6, 20, DATA_WORKER),
        transfer(8, 7, 30, TENSOR_WORKER),
    ]
    (row,) = step_times(recorded(events))
    (group,) = row.groups
    assert (group.group, group.instances, group.communication_ns) == (DATA, 1, 24_000)


def test_communication_that_runs_on_counts_in_each_step_for_its_part(recorded):
    events = [
        event("ProfilerStep#1", 0, 50, category="user_annotation"),
        event("ProfilerStep#2", 50, 90, category="user_annotation"),
        *collective(DATA, 1, 8, 40, 42),
        transfer(8, 42, 70, DATA_WORKER),
    ]
    first, second = step_times(recorded(events))
    assert (first.communication_ns, second.communication_ns) == (8_000, 20_000)
    assert [group.instances for row in (first, second) for group in row.groups] == [1, 0]


def test_a_step_without_communication_has_none_and_no_groups(recorded):
    events = [
        event("ProfilerStep#1", 0, 50, category="user_annotation"),
        event("aten::mm", 10, 20),
    ]
    (row,) = step_times(recorded(events))
    assert microseconds(row, *SHARES) == (50, 10, 0, 0, 0, 10, 40)
    assert row.groups == ()


def test_what_a_dispatch_mode_adds_around_operators_is_no_compute_of_its_own(recorded):
    events = [
        event("ProfilerStep#1", 0, 50, category="user_annotation"),
        event("aten::mm", 10, 20),
        event("PythonDispatchMode", 11, 19),
        event("PythonDispatchMode", 30, 45),
    ]
    (row,) = step_times(recorded(events))
    assert row.compute_ns == 10_000


def test_streams_that_run_at_once_are_united_not_added(recorded):
    # Two NCCL streams of 50 us together, compute beside them for 20: HTA's case of 40 %.
    events = [
        kernel("ncclDevKernel_AllReduce", 0, 50, stream=20),
        kernel("ncclDevKernel_AllGather", 0, 50, stream=21),
        kernel("gemm", 30, 50),
    ]
    row = whole_time(recorded(events))
    assert microseconds(row, *SHARES) == (50, 20, 50, 20, 30, 50, 0)


def test_copies_are_busy_but_neither_compute_nor_communication(recorded):
    events = [
        kernel("gemm", 0, 10),
        kernel("Memcpy DtoD", 20, 30, category="gpu_memcpy"),
        kernel("Memset", 30, 35, category="gpu_memset"),
        kernel("ncclDevKernel_AllReduce", 40, 50),
    ]
    row = whole_time(recorded(events))
    assert microseconds(row, *SHARES) == (50, 10, 10, 0, 10, 35, 15)


def test_a_devices_step_spans_what_was_launched_in_it(recorded):
    events = [
        event("ProfilerStep#1", 0, 50, category="user_annotation"),
        event("cudaLaunchKernel", 40, 41, category="cuda_runtime", correlation=1),
        kernel("gemm", 60, 80, correlation=1),
        kernel("gemm", 10, 30),
    ]
    (row,) = step_times(recorded(events))
    assert microseconds(row, "span", "compute", "idle") == (70, 40, 30)


def test_annotations_and_synchronisation_marks_of_a_device_are_no_work(recorded):
    events = [
        kernel("gemm", 10, 20),
        kernel("ProfilerStep#1", 0, 100, category="gpu_user_annotation"),
        kernel("Context Sync", 20, 90, category="cuda_sync"),
    ]
    row = whole_time(recorded(events))
    assert microseconds(row, "span", "busy") == (10, 10)


def test_a_recording_of_nothing_has_no_row(recorded):
    trace = recorded([event("cudaLaunchKernel", 0, 5, category="cuda_runtime")])
    assert whole_time(trace) is None
    assert step_times(trace) == []
