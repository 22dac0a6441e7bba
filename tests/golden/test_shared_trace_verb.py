"""`steptally trace --json` on real traces: every number of ../shared/traces/README.md, exactly."""

import json

import pytest
from test_shared_traces import DLRM_US, SINGLE_NS
from typer.testing import CliRunner

from recordings import SHARED_TRACES, needs_shared_traces
from steptally.cli.main import app

pytestmark = needs_shared_traces

KEYS = ("span_ns", "compute_ns", "communication_ns", "overlap_ns", "exposed_ns", "busy_ns")


def traced(*arguments):
    result = CliRunner().invoke(app, ["trace", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_eight_ranks_in_one_call():
    ranks = traced(SHARED_TRACES / "dlrm_v100_8ranks")["ranks"]
    found = {one["rank"]: tuple(one[key] // 1000 for key in KEYS) for one in ranks}
    assert found == DLRM_US
    for one in ranks:
        assert [group["group"] for group in one["groups"]] == ["unattributed"]
        assert [step["step"] for step in one["steps"]] == [10]
        assert one["busy_ns"] + one["idle_ns"] == one["span_ns"]


@pytest.mark.parametrize("name", SINGLE_NS)
def test_each_single_trace(name):
    (one,) = traced(SHARED_TRACES / f"{name}.json.gz")["ranks"]
    assert tuple(one[key] for key in KEYS) == SINGLE_NS[name]


@pytest.mark.parametrize("name", SINGLE_NS)
def test_idle_time_is_told_to_the_last_nanosecond(name):
    (one,) = traced(SHARED_TRACES / f"{name}.json.gz")["ranks"]
    gaps = one["gaps"]
    causes = ("host_ns", "communication_ns", "dependency_ns", "no_work_ns", "untold_ns")
    assert sum(gaps[cause] for cause in causes) == gaps["idle_ns"] == one["idle_ns"]


def test_several_streams_of_nccl_are_one_union():
    tally = traced(SHARED_TRACES / "a100_3_nccl_streams.json.gz")
    (family,) = (
        row for row in tally["accounts"]["kernel_families"] if row["family"] == "communication"
    )
    (one,) = tally["ranks"]
    assert (one["communication_ns"], family["total_ns"]) == (187_870_000, 190_345_000)


def test_idle_before_work_of_replayed_graphs_is_not_told():
    # 70 graph launches of 2023 whose kernels CUPTI showed in part: "idle" is 64 % of the span.
    (one,) = traced(SHARED_TRACES / "a100_3_nccl_streams.json.gz")["ranks"]
    assert one["gaps"]["untold_ns"] > 0.8 * one["idle_ns"]
    assert one["gaps"]["recoverable_ns"] is None
    (replays,) = (row for row in one["trust"] if row["check"] == "graph replays")
    assert replays["verdict"] == "downgraded"


def test_a_trace_without_communication_is_not_applicable():
    tally = traced(SHARED_TRACES / "ns_resolution_v100.json.gz")
    (one,) = tally["ranks"]
    assert one["hidden_share"] == "not applicable"
    assert tally["summary"]["hidden_communication_share"] == "not applicable"
    assert tally["summary"]["exposed_communication_share"] == "not applicable"


def test_work_without_launches_is_counted_and_told():
    (one,) = traced(SHARED_TRACES / "mi300_unlinked_kernels.json.gz")["ranks"]
    (row,) = (row for row in one["trust"] if row["check"] == "unlinked")
    assert (row["count"], row["of"], row["verdict"]) == (968, 3653, "downgraded")


def test_a_subset_of_ranks_says_what_it_hides():
    folder = SHARED_TRACES / "dlrm_v100_8ranks"
    tally = traced(folder / "rank2.json.gz", folder / "rank5.json.gz")
    assert [one["rank"] for one in tally["ranks"]] == [2, 5]
    row = tally["accounts"]["trust"][0]
    assert (row["check"], row["count"], row["of"], row["verdict"]) == ("ranks read", 2, 8, "noted")


# Device: kernels, of which NCCL; span, compute, communication, overlap in ms.
NSYS_MS = {
    0: (1993, 33, 299.849, 253.691, 17.173, 0),
    1: (2017, 33, 298.662, 256.096, 8.229, 0),
}


def test_both_devices_of_an_nsight_export():
    tally = traced(SHARED_TRACES.parent / "nsys" / "mfu_2gpu_before.sqlite")
    for one in tally["ranks"]:
        kernels, nccl, *shares = NSYS_MS[one["source"]["device"]]
        keys = ("span_ns", "compute_ns", "communication_ns", "overlap_ns")
        assert [round(one[key] / 1e6, 3) for key in keys] == shares
        assert one["gaps"]["kernels"] == kernels - nccl
        assert [group["instances"] for group in one["groups"]] == [nccl]
    assert len(tally["ranks"]) == 2
    assert "does not say its rank: it is shown as rank 0" in " ".join(tally["warnings"])


@pytest.mark.parametrize("name", ["mock", "healthy_1pct"])
def test_exports_of_other_schema_versions(name):
    (one,) = traced(SHARED_TRACES.parent / "nsys" / f"{name}.sqlite")["ranks"]
    assert one["busy_ns"] + one["idle_ns"] == one["span_ns"]
    assert one["hidden_share"] == "not applicable"
