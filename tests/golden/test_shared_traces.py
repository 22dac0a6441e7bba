"""Real GPU traces, against the numbers of ../shared/traces/README.md (integer nanoseconds)."""

import polars as pl
import pytest

from recordings import SHARED_TRACES, needs_shared_traces
from steptally.measure.overlap import step_times, whole_time
from steptally.trace.kineto import read_kineto
from steptally.trace.read import read_traces

pytestmark = needs_shared_traces

# rank: span, compute, communication, overlap, exposed, busy; the file has whole microseconds.
DLRM_US = {
    0: (13009, 1034, 5798, 261, 5537, 6590),
    1: (18749, 1246, 11336, 280, 11056, 12321),
    2: (11350, 1068, 3492, 275, 3217, 4304),
    3: (18853, 1240, 9774, 324, 9450, 10708),
    4: (16589, 1126, 6587, 37, 6550, 7702),
    5: (16392, 1041, 6251, 40, 6211, 7271),
    6: (11410, 1051, 3558, 269, 3289, 4359),
    7: (10967, 1059, 1746, 166, 1580, 2659),
}
SINGLE_NS = {
    "a100_nccl_args": (660551005, 115655847, 46876493, 7317025, 39559468, 157500014),
    "2022_dialect": (464594000, 281336000, 163535000, 75614000, 87921000, 388587000),
    "a100_3_nccl_streams": (1231461000, 210998000, 187870000, 2553000, 185317000, 438424000),
    "mi300_unlinked_kernels": (86567708, 25739303, 71516523, 15891299, 55625224, 84002056),
}


def shares(row):
    return (
        row.span_ns,
        row.compute_ns,
        row.communication_ns,
        row.overlap_ns,
        row.exposed_ns,
        row.busy_ns,
    )


@pytest.mark.parametrize("rank", DLRM_US)
def test_each_of_eight_ranks_has_the_published_shares(rank):
    trace = read_kineto(SHARED_TRACES / "dlrm_v100_8ranks" / f"rank{rank}.json.gz")
    row = whole_time(trace)
    assert shares(row) == tuple(1000 * number for number in DLRM_US[rank])
    assert row.rank == rank
    # Recorded in 2022, without the collectives' arguments: nothing tells their group.
    assert [(group.group, group.instances) for group in row.groups] == [("unattributed", 8)]


@pytest.mark.parametrize("name", SINGLE_NS)
def test_each_dialect_has_the_published_shares_to_the_nanosecond(name):
    assert shares(whole_time(read_kineto(SHARED_TRACES / f"{name}.json.gz"))) == SINGLE_NS[name]


@pytest.mark.parametrize("name", SINGLE_NS)
def test_no_traced_step_is_lost_and_each_adds_up(name):
    trace = read_kineto(SHARED_TRACES / f"{name}.json.gz")
    rows = step_times(trace)
    annotated = trace.events.filter(kind="step")["name"].n_unique()
    assert len(rows) == annotated
    for row in rows:
        assert row.busy_ns + row.idle_ns == row.span_ns
        assert 0 <= row.overlap_ns <= min(row.compute_ns, row.communication_ns)


def test_nccl_arguments_name_the_group():
    trace = read_kineto(SHARED_TRACES / "a100_nccl_args.json.gz")
    (group,) = whole_time(trace).groups
    assert (group.group, group.instances) == ("default_pg", 21)
    # The arguments of the first NCCL kernel in the file, read by eye.
    first = trace.collectives.row(0, named=True)
    assert (first["collective"], first["elements_in"], first["dtype"]) == (
        "allreduce",
        6637568,
        "Float",
    )
    assert (first["group_ranks"], first["group_size"]) == ("[0, 1]", 2)


def test_a_trace_without_communication_has_none():
    row = whole_time(read_kineto(SHARED_TRACES / "ns_resolution_v100.json.gz"))
    assert row.communication_ns == row.exposed_ns == 0
    assert row.groups == ()


# Device: kernels, of them NCCL's, then span, compute and communication in milliseconds.
NSYS = {0: (1993, 33, 299.849, 253.691, 17.173), 1: (2017, 33, 298.662, 256.096, 8.229)}


def test_each_device_of_an_nsight_systems_export_has_the_published_shares():
    sources = read_traces([SHARED_TRACES.parent / "nsys" / "mfu_2gpu_before.sqlite"])
    found = {}
    for trace in (source.read() for source in sources):
        row = whole_time(trace)
        kernels = trace.events.filter(pl.col("launch_shape").is_not_null())
        milliseconds = (row.span_ns, row.compute_ns, row.communication_ns)
        counts = (kernels.height, kernels.filter(kind="communication").height)
        found[trace.device] = (*counts, *(round(ns / 1e6, 3) for ns in milliseconds))
        assert row.overlap_ns == 0
        assert trace.losses == ()
    assert found == NSYS


@pytest.mark.parametrize("name", ["mock", "healthy_1pct"])
def test_exports_of_other_schema_versions_are_read_without_loss(name):
    (source,) = read_traces([SHARED_TRACES.parent / "nsys" / f"{name}.sqlite"])
    trace = source.read()
    assert trace.losses == ()
    assert trace.has_device
