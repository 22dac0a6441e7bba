"""Nsight Systems exports of several schema versions, read into the same rows as Kineto's."""

import sqlite3

import pytest

from nsys_files import (
    COPY,
    GLOBAL_PID,
    KERNEL,
    LAUNCH,
    MEMSET,
    PID,
    RANGE,
    SESSION_NS,
    THREAD,
    write_export,
)
from steptally.errors import InputError
from steptally.trace import nsys_database
from steptally.trace.nsys import Part, nsys_parts, read_nsys
from steptally.trace.schema import EVENTS


@pytest.fixture
def read(tmp_path):
    """Reads the only device of an export made of these tables."""

    def write_and_read(**tables):
        path = write_export(tmp_path / "report.sqlite", **tables)
        (part,) = nsys_parts(path)
        return read_nsys(path, part)

    return write_and_read


def readable(path):
    """The trace, or None where it is refused; anything else is a fault."""
    try:
        return read_nsys(path, Part(GLOBAL_PID, 0))
    except InputError:
        return None


def without(row, *columns):
    return {name: value for name, value in row.items() if name not in columns}


def test_a_kernel_has_its_place_its_times_and_its_launch_shape(read):
    trace = read(kernel=[KERNEL], runtime=[LAUNCH])
    assert dict(trace.events.schema) == dict(EVENTS)
    kernel = trace.events.filter(kind="compute").row(0, named=True)
    assert kernel["name"] == "void gemm_kernel<float>(float*)"
    assert (kernel["start_ns"], kernel["end_ns"]) == (SESSION_NS + 1000, SESSION_NS + 1500)
    assert (kernel["device"], kernel["stream"], kernel["correlation"]) == (0, 7, 11)
    assert kernel["launch_shape"] == "[108,2,1],[256,1,1]"
    assert kernel["graph"] is None
    assert (trace.process, trace.device, trace.rank) == (PID, 0, None)


def test_a_call_of_the_runtime_is_a_launch_of_its_thread_by_its_plain_name(read):
    launch = read(kernel=[KERNEL], runtime=[LAUNCH]).events.filter(kind="launch").row(0, named=True)
    assert launch["name"] == "cudaLaunchKernel"
    assert (launch["process"], launch["thread"], launch["correlation"]) == (PID, 77, 11)
    assert launch["stream"] is None


def test_calls_and_ranges_of_other_processes_are_none_of_this_one(read):
    other = THREAD + (1 << 24)
    trace = read(
        kernel=[KERNEL],
        runtime=[LAUNCH, {**LAUNCH, "globalTid": other}],
        nvtx=[RANGE, {**RANGE, "globalTid": other}],
    )
    assert trace.events.filter(kind="launch").height == 1
    assert trace.events.filter(kind="step").height == 1


def test_each_device_of_each_process_is_a_trace_of_its_own(tmp_path):
    second = {**KERNEL, "deviceId": 1, "streamId": 7, "globalPid": GLOBAL_PID + (1 << 24)}
    path = write_export(tmp_path / "node.sqlite", kernel=[KERNEL, second, second])
    parts = nsys_parts(path)
    assert [(part.process, part.device) for part in parts] == [(PID, 0), (PID + 1, 1)]
    assert [read_nsys(path, part).events.height for part in parts] == [1, 2]


def test_kinds_are_those_of_the_rules_whatever_the_profiler(read):
    peer = {**COPY, "copyKind": 10}
    between = {**COPY, "srcDeviceId": 0, "dstDeviceId": 1}
    trace = read(
        kernel=[KERNEL, {**KERNEL, "demangledName": 2}],
        memcpy=[COPY, peer, between],
        memset=[MEMSET],
        synchronization=[{**without(MEMSET, "bytes"), "syncType": 2}],
    )
    kinds = dict(trace.events["kind"].value_counts().iter_rows())
    assert kinds == {"compute": 1, "communication": 3, "copy": 1, "memset": 1, "device_sync": 1}
    assert set(trace.events.filter(kind="communication")["group"]) == {"unattributed"}
    assert trace.events.filter(kind="copy")["bytes"].to_list() == [4096]
    assert trace.events.filter(kind="device_sync")["name"].to_list() == ["Stream Wait Event"]


def test_a_torch_step_is_a_step_and_its_kernels_belong_to_it(read):
    trace = read(kernel=[KERNEL], runtime=[LAUNCH], nvtx=[RANGE])
    assert trace.events.filter(kind="compute")["step"].to_list() == [7]


def test_ranges_are_annotations_without_their_details_and_nccls_are_issues(read):
    own = {**RANGE, "text": "aten::mm, op_id = 990346, sizes = [[2, 3], [3, 4]]", "textId": None}
    nccl = {**RANGE, "textId": 5, "domainId": 1}
    marker = {**RANGE, "eventType": 34, "end": None}
    events = read(kernel=[KERNEL], nvtx=[own, nccl, marker]).events
    assert events.filter(kind="annotation")["name"].to_list() == ["aten::mm"]
    assert events.filter(kind="issue")["name"].to_list() == ["ncclAllReduce"]


def nccl_range(text, start, end, communicator=None):
    payload = None if communicator is None else f'{{"NCCL communicator ID": {communicator}}}'
    row = {**RANGE, "start": start, "end": end, "text": text, "textId": None, "domainId": 1}
    return row | {"jsonText": payload}


@pytest.mark.parametrize(
    ("ranges", "group"),
    [
        # The launch is at 900.
        ([("ncclAllReduce", 890, 960, 77)], "communicator 77"),
        ([("ncclAllReduce", 890, 960, '"1,234,567"')], "communicator 1234567"),
        ([("ncclAllReduce", 890, 895, 77)], "unattributed"),
        ([("ncclAllReduce", 890, 960, None), ("ncclBroadcast", 10, 20, 5)], "unattributed"),
        (
            [
                ("ncclSend", 10, 20, 5),
                ("ncclGroupStart", 800, 805, None),
                ("ncclSend", 810, 815, 77),
                ("ncclRecv", 820, 825, 77),
                ("ncclGroupEnd", 890, 960, None),
            ],
            "communicator 77",
        ),
        (
            [
                ("ncclGroupStart", 800, 805, None),
                ("ncclSend", 810, 815, 77),
                ("ncclRecv", 820, 825, 78),
                ("ncclGroupEnd", 890, 960, None),
            ],
            "unattributed",
        ),
    ],
)
def test_a_kernel_is_of_the_communicator_whose_call_launched_it_or_of_none(read, ranges, group):
    trace = read(
        kernel=[{**KERNEL, "demangledName": 2}],
        runtime=[LAUNCH],
        nvtx=[nccl_range(*own) for own in ranges],
    )
    assert trace.events.filter(kind="communication")["group"].to_list() == [group]


def test_graph_replays_are_told_by_node_or_as_a_whole(read):
    replay = {**without(MEMSET, "bytes"), "graphId": 5}
    events = read(kernel=[{**KERNEL, "graphId": 3}], graph_trace=[replay]).events
    assert events.filter(kind="compute")["graph"].to_list() == [3]
    assert events.filter(kind="graph").select("name", "graph").rows() == [("CUDA graph", 5)]


def test_the_profilers_own_work_is_kept_apart(read):
    own = {"start": 1, "end": 9, "globalTid": THREAD, "nameId": 6}
    events = read(kernel=[KERNEL], overhead=[own], profiler=[own]).events
    assert events.filter(kind="instrument")["name"].to_list() == ["Activity Buffer Request"] * 2


def test_an_old_export_without_processes_graphs_or_copies_is_read_all_the_same(read):
    old = without(KERNEL, "globalPid", "graphId", "correlationId", "gridX")
    trace = read(kernel=[old], runtime=[without(LAUNCH, "correlationId")])
    row = trace.events.filter(kind="compute").row(0, named=True)
    assert (row["stream"], row["correlation"], row["launch_shape"]) == (7, None, None)
    assert trace.process is None


def test_names_that_the_export_does_not_hold_are_said_to_be_missing(read):
    trace = read(
        kernel=[{**KERNEL, "demangledName": 999}, without(KERNEL) | {"demangledName": None}]
    )
    assert set(trace.events["name"]) == {"(unnamed kernel)"}


def test_times_that_are_unix_times_already_stay_as_they_are(read):
    shifted = {**KERNEL, "start": SESSION_NS + 5, "end": SESSION_NS + 9}
    assert read(kernel=[shifted]).events["start_ns"].to_list() == [SESSION_NS + 5]


@pytest.mark.parametrize("spoilt", [{"end": None}, {"start": "x"}, {"end": 999}, {"end": 1.5}])
def test_rows_without_usable_times_are_lost_and_counted(read, spoilt):
    trace = read(kernel=[KERNEL, {**KERNEL, **spoilt}])
    assert trace.events.height == 1
    (loss,) = trace.losses
    assert (loss.events, loss.reason) == (1, "no usable time, or a negative duration")


def test_rows_are_read_alike_in_chunks_of_any_size(tmp_path, monkeypatch):
    kernels = [{**KERNEL, "start": n, "end": n + 5, "correlationId": n or None} for n in range(50)]
    path = write_export(tmp_path / "report.sqlite", kernel=kernels)
    (part,) = nsys_parts(path)
    whole = read_nsys(path, part)
    monkeypatch.setattr(nsys_database, "_CHUNK_ROWS", 7)
    assert read_nsys(path, part).events.equals(whole.events)
    assert whole.events["correlation"].null_count() == 1


def test_a_file_without_device_work_is_refused_with_what_it_needs(tmp_path):
    path = write_export(tmp_path / "empty.sqlite", runtime=[LAUNCH])
    with pytest.raises(InputError, match="holds no work of a CUDA device"):
        nsys_parts(path)


def test_what_is_no_database_is_refused(tmp_path):
    path = tmp_path / "no.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"junk" * 100)
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        nsys_parts(path)
    with pytest.raises(InputError, match="nowhere"):
        nsys_parts(tmp_path / "nowhere.sqlite")


def test_a_database_that_is_being_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_database, "_WAIT_S", 0.05)
    path = write_export(tmp_path / "report.sqlite", kernel=[KERNEL])
    writer = sqlite3.connect(path)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="wait until its export has ended"):
        nsys_parts(path)
    writer.close()


def test_a_damaged_page_costs_its_rows_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_database, "_CHUNK_ROWS", 1 << 10)
    kernels = [{**KERNEL, "start": 10 * n, "end": 10 * n + 5} for n in range(20_000)]
    path = write_export(tmp_path / "report.sqlite", kernel=kernels)
    data = bytearray(path.read_bytes())
    page = len(data) // 2 // 4096 * 4096
    data[page : page + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    trace = read_nsys(path, Part(GLOBAL_PID, 0))
    assert 15_000 < trace.events.height < 20_000
    starts = trace.events["start_ns"] - SESSION_NS
    assert (starts % 10 == 0).all()
    (loss,) = trace.losses
    assert "damaged pages" in loss.reason
    assert loss.events >= 20_000 - trace.events.height


@pytest.mark.parametrize("odd", [None, "seven", 7.5])
def test_a_value_of_another_type_costs_no_other_row(tmp_path, monkeypatch, odd):
    # Types are told from a first batch of rows; what is no integer comes long after it.
    monkeypatch.setattr(nsys_database, "_ARROW_ROWS", 4)
    kernels = [{**KERNEL, "start": 10 * n, "end": 10 * n + 5} for n in range(40)]
    kernels[30]["streamId"] = odd
    trace = read_nsys(write_export(tmp_path / "report.sqlite", kernel=kernels), Part(GLOBAL_PID, 0))
    assert trace.events.height == 40
    assert trace.events["stream"].null_count() == 1
    assert trace.losses == ()


def test_a_row_number_far_from_all_others_costs_no_time(tmp_path):
    path = write_export(tmp_path / "report.sqlite", kernel=[KERNEL, KERNEL, KERNEL])
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = {2**50} WHERE rowid = 3")
    assert read_nsys(path, Part(GLOBAL_PID, 0)).events.height == 3


def test_a_device_that_cannot_be_one_is_none(tmp_path):
    damaged = {**KERNEL, "deviceId": 2**63 - 1}
    path = write_export(tmp_path / "report.sqlite", kernel=[KERNEL, damaged])
    assert [part.device for part in nsys_parts(path)] == [0]


def test_a_schema_of_damaged_bytes_is_refused_in_one_sentence(tmp_path):
    # SQLite quotes the name of the table in its message, which is no UTF-8 then.
    path = write_export(tmp_path / "report.sqlite", kernel=[KERNEL])
    data = path.read_bytes()
    damaged = data.replace(b"tableCUPTI_A", b"tableCUPTI\xe8A")
    damaged = damaged.replace(b"CREATE TABLE CUPTI_A", b"CREATE XXBLE CUPTI_A")
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="is damaged or no SQLite database"):
        nsys_parts(path)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.95])
def test_a_cut_database_is_refused_or_read_as_far_as_it_goes(tmp_path, share):
    kernels = [{**KERNEL, "start": 10 * n, "end": 10 * n + 5} for n in range(5_000)]
    path = write_export(tmp_path / "report.sqlite", kernel=kernels)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    trace = readable(path)
    assert trace is None or trace.losses
