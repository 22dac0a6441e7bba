"""Dialects of Kineto's JSON, each read into the same rows."""

import gzip
import json

import pytest

from steptally.errors import InputError
from steptally.trace import kineto_blocks
from steptally.trace.kineto import read_kineto
from steptally.trace.schema import EVENTS

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 100,
    "dur": 10,
    "args": {"device": 0, "stream": 7, "correlation": 5},
}
LAUNCH = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 900,
    "tid": 901,
    "ts": 90,
    "dur": 2,
    "args": {"correlation": 5},
}


@pytest.fixture
def read(tmp_path):
    """Reads a trace made of these events and file-wide entries."""

    def write_and_read(events, name="trace.json", rank=None, **entries):
        path = tmp_path / name
        text = json.dumps({**entries, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return read_kineto(path, rank)

    return write_and_read


def times(trace):
    return trace.events.select("start_ns", "end_ns").rows()


def test_every_trace_has_the_same_columns_and_types(read):
    assert dict(read([KERNEL, LAUNCH]).events.schema) == dict(EVENTS)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_plain_and_gzipped_files_read_the_same(read, name):
    trace = read([KERNEL], name)
    assert times(trace) == [(100_000, 110_000)]
    assert trace.losses == ()


def test_a_file_of_several_gzip_members_is_read_to_its_end(tmp_path):
    text = json.dumps({"traceEvents": [KERNEL]}).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:20]) + gzip.compress(text[20:]))
    assert times(read_kineto(path)) == [(100_000, 110_000)]


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([KERNEL, LAUNCH]))
    assert len(read_kineto(path).events) == 2


def test_the_base_time_is_added_wherever_it_stands(read, tmp_path):
    base = 1_711_964_646_000_000_000
    assert times(read([KERNEL], baseTimeNanoseconds=base))[0][0] == base + 100_000
    path = tmp_path / "behind.json"
    path.write_text(json.dumps({"traceEvents": [KERNEL], "baseTimeNanoseconds": base}))
    assert times(read_kineto(path))[0][0] == base + 100_000


def test_decimals_too_large_for_a_double_keep_their_nanoseconds(tmp_path):
    # Unix microseconds: a double near 1.7e15 steps by a quarter of a microsecond.
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": [KERNEL, LAUNCH]})
    path.write_text(text.replace('"ts": 100', '"ts": 1661203462598738.123'))
    assert times(read_kineto(path))[0] == (1661203462598738123, 1661203462598748123)


def test_times_written_as_text_are_read(read):
    spelled = {**KERNEL, "ts": "1661203462598738.123", "dur": "0.5"}
    assert times(read([spelled])) == [(1661203462598738123, 1661203462598738623)]


def test_a_kernel_without_arguments_is_placed_by_its_process_and_thread(read):
    bare = {key: value for key, value in KERNEL.items() if key != "args"}
    row = read([bare]).events.row(0, named=True)
    assert (row["device"], row["stream"], row["kind"]) == (0, 7, "compute")


def test_a_kernel_keeps_its_launch_shape_and_the_graph_it_was_replayed_from(read):
    shaped = {"grid": [108, 1, 1], "block": [256, 1, 1], "graph id": 4, "graph node id": 17}
    plain = {"grid": [108, 1, 1], "block": [256, 1, 1], "graph id": 0}
    events = read([{**KERNEL, "args": own} for own in (shaped, plain, {})]).events
    assert events["launch_shape"].to_list() == ["[108,1,1],[256,1,1]"] * 2 + [None]
    assert events["graph"].to_list() == [4, None, None]


def test_a_cpu_operator_with_a_stream_is_no_kernel(read):
    # Seen in traces of B200: a Triton operator that carries "stream": 0.
    operator = {**LAUNCH, "cat": "cpu_op", "name": "triton_poi_fused", "args": {"stream": 0}}
    row = read([operator]).events.row(0, named=True)
    assert (row["kind"], row["stream"], row["thread"]) == ("operator", None, 901)


def test_ids_written_as_text_keep_their_number(read):
    row = read([{**KERNEL, "args": {}, "pid": "0", "tid": "stream 7"}]).events.row(0, named=True)
    assert (row["device"], row["stream"]) == (0, 7)


def test_integers_beyond_64_bits_spoil_no_other_field(read):
    huge = {**KERNEL, "args": {"device": 0, "stream": 7, "correlation": 2**70, "bytes": 2**64}}
    row = read([huge]).events.row(0, named=True)
    assert (row["stream"], row["correlation"], row["bytes"]) == (7, None, None)


@pytest.mark.parametrize(
    ("name", "entries", "rank"),
    [
        ("rank3.json", {"distributedInfo": {"rank": 5}}, 5),
        ("rank3.json", {"distributedInfo": {"backend": "nccl"}}, 3),
        ("worker12.pt.trace.json", {}, 12),
        ("trace.json", {}, None),
    ],
)
def test_the_rank_is_what_the_file_says_else_its_name(read, name, entries, rank):
    assert read([KERNEL], name, **entries).rank == rank


def test_a_rank_that_is_given_outranks_the_file(read):
    trace = read([KERNEL], rank=9, distributedInfo={"rank": 5})
    assert trace.rank == 9
    assert trace.events["rank"].to_list() == [9]
    assert "read as rank 9, but says that it is of rank 5" in trace.warnings[0]


def test_a_kernel_belongs_to_the_step_that_launched_it(read):
    step = {**LAUNCH, "cat": "user_annotation", "args": {}}
    first = {**step, "name": "ProfilerStep#1", "ts": 80, "dur": 15}
    second = {**step, "name": "ProfilerStep#2", "ts": 95, "dur": 100}
    events = read([KERNEL, LAUNCH, first, second]).events
    assert events.filter(kind="compute")["step"].to_list() == [1]  # runs at 100, launched at 90


def test_a_kernel_without_a_launch_belongs_to_the_step_it_starts_in(read):
    step = {**LAUNCH, "cat": "user_annotation", "args": {}}
    second = {**step, "name": "ProfilerStep#2", "ts": 95, "dur": 100}
    events = read([KERNEL, second]).events
    assert events.filter(kind="compute")["step"].to_list() == [2]


def test_the_devices_copy_of_a_step_is_no_window(read):
    copy = {**KERNEL, "cat": "gpu_user_annotation", "name": "ProfilerStep#2", "dur": 1}
    assert read([KERNEL, copy]).events["step"].is_null().all()


def test_an_unknown_category_is_reported_not_dropped_silently(read):
    trace = read([KERNEL, {**KERNEL, "cat": "quantum_kernel"}])
    assert len(trace.events) == 1
    (warning,) = trace.warnings
    assert "1 events" in warning
    assert "'quantum_kernel'" in warning


def test_kernels_named_like_communication_that_no_rule_knows_are_reported(read):
    trace = read([{**KERNEL, "name": "my_lab::fast_all_to_all_v3"}, KERNEL])
    (warning,) = trace.warnings
    assert "1 kernels of 0.010 ms" in warning
    assert "'my_lab::fast_all_to_all_v3'" in warning


def test_process_groups_are_those_of_distributed_info(read):
    configuration = [{"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]
    trace = read([KERNEL], distributedInfo={"rank": 0, "pg_config": configuration})
    (group,) = trace.groups
    assert (group.name, group.description, group.ranks) == (
        "3",
        "TENSOR_MODEL_PARALLEL_GROUP",
        (0, 1),
    )


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({"Process Group Name": "3", "Process Group Description": "TP"}, "TP"),
        ({"Process Group Name": "3", "Process Group Description": "undefined"}, "process group 3"),
        ({}, "unattributed"),
    ],
)
def test_a_group_is_called_by_its_description_else_by_its_number(read, arguments, label):
    kernel = {**KERNEL, "name": "ncclDevKernel_AllReduce", "args": KERNEL["args"] | arguments}
    kernel["args"] |= {"Collective name": "allreduce"} if arguments else {}
    assert read([kernel]).events["group"].to_list() == [label]


@pytest.mark.parametrize("content", ["", "{}", '{"a": [1]}', "not json", "\x1f\x8b"])
def test_what_is_no_trace_is_refused_with_what_would_be(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(InputError, match="export_chrome_trace"):
        read_kineto(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read"):
        read_kineto(tmp_path / "nowhere.json")


def test_blocks_of_any_size_read_the_same_even_when_cut_inside_an_event(tmp_path, monkeypatch):
    # The nested objects look like events: a cut can fall between them.
    nested = [{"name": "x", "id": number} for number in range(9)]
    events = [
        {**KERNEL, "ts": number, "args": {**KERNEL["args"], "list": nested}} for number in range(40)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "INFO": ["a", "b"]}))
    whole = read_kineto(path)
    assert len(whole.events) == 40
    for size in (16, 100, 777):
        monkeypatch.setattr(kineto_blocks, "BLOCK_BYTES", size)
        pieces = read_kineto(path)
        assert pieces.losses == ()
        assert pieces.events.sort("start_ns").equals(whole.events.sort("start_ns"))


def test_the_shapes_of_every_operator_are_kept(read):
    # Those of elementwise operators tell what a fusion would save; autograd's numbers are kept
    # where they tell the phase of what is inside.
    arguments = {"Input Dims": [[4, 8]], "Input type": ["float"], "Sequence number": 3}
    events = [
        {**LAUNCH, "cat": "cpu_op", "name": name, "args": arguments}
        for name in ("aten::relu", "aten::mm")
    ]
    operators = read(events).operators.sort("event")
    assert operators["dimensions"].to_list() == ["[[4, 8]]", "[[4, 8]]"]
    assert operators["types"].to_list() == ['["float"]', '["float"]']
    assert operators["sequence"].to_list() == [None, 3]
