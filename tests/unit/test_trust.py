"""What spoils a recording is measured, and what it spoils is downgraded or refused."""

import pytest

from device_traces import account, call, event, kernel, nccl
from steptally.measure.trace_tally import TraceMerge, trace_tally


@pytest.fixture
def measured(tmp_path):
    return lambda *events, **options: account(tmp_path / "rank0.json", *events, **options)


def test_of(account, check):
    (row,) = (row for row in account.trust if row.check == check)
    return row


test_of.__test__ = False


def tally_of(*accounts, **options):
    merge = TraceMerge()
    for one in accounts:
        merge.add(one)
    return trace_tally(merge, **options)


def many(number, start=0, **where):
    return [
        kernel("gemm", start + 10 * i, start + 10 * i + 5, launched=start + 10 * i - 3, **where)
        for i in range(number)
    ]


def test_a_sound_recording_passes_every_test(measured):
    found = measured(*many(20), nccl(300, 310, launched=290))
    assert {row.verdict for row in found.trust} == {"good"}


def test_work_without_a_launch_downgrades_what_rests_on_launches(measured):
    row = test_of(measured(*many(20), kernel("gemm", 500, 505)), "unlinked")
    assert (row.count, row.of, row.verdict) == (1, 21, "downgraded")
    assert row.affects.startswith("gaps")


def test_launched_kernels_that_the_device_does_not_show_are_lost(measured):
    lost = [call("cudaLaunchKernel", 1000 + i, 1000.5 + i) for i in range(3)]
    row = test_of(measured(*many(20), *lost, call("cudaFuncSetAttribute", 0, 1)), "lost")
    assert (row.count, row.of, row.verdict) == (3, 23, "downgraded")


def test_shares_of_a_rank_that_lost_much_are_refused(measured):
    lost = [call("cudaLaunchKernel", 1000 + i, 1000.5 + i) for i in range(30)]
    tally = tally_of(measured(*many(20), *lost))
    assert "compute_share" not in tally.summary
    assert "shares of rank 0's time: 30 of 50 launched kernels" in tally.refusals[0]


def test_an_event_longer_than_its_stream_allows_is_corrupt(measured):
    # TraceLens#669: one duration that goes on over the 19 kernels behind it on its own stream.
    events = many(20)
    events[0][1]["dur"] = 200
    row = test_of(measured(*events), "overlong")
    assert (row.count, row.verdict, row.duration_ns) == (1, "refused", 200_000)


def test_kernels_side_by_side_on_one_stream_are_noted(measured):
    # Programmatic dependent launch: the next begins 1 µs before the one ahead ends.
    events = [kernel("gemm", 10 * i, 10 * i + 11, launched=10 * i - 3) for i in range(4)]
    found = measured(*events)
    row = test_of(found, "same-stream overlaps")
    assert (row.count, row.verdict, row.duration_ns) == (3, "noted", 3_000)
    assert test_of(found, "overlong").count == 0
    assert found.times.recording.compute_ns == 41_000  # 0–41, each moment once


def test_a_clock_that_disagrees_is_measured(measured):
    row = test_of(measured(kernel("gemm", 0, 5, launched=20)), "starts before its launch")
    assert (row.count, row.duration_ns, row.verdict) == (1, 20_000, "downgraded")
    row = test_of(measured(kernel("gemm", 0, 5, launched=3)), "starts before its launch")
    assert (row.duration_ns, row.verdict) == (3_000, "noted")


def test_the_profilers_own_work_is_printed(measured):
    flush = event("overhead", "Activity Buffer Request", 50, 90, thread=0)
    row = test_of(measured(*many(3), flush), "profiler overhead")
    assert (row.count, row.duration_ns, row.verdict) == (1, 40_000, "noted")


def test_ranks_that_were_not_read_are_named(measured):
    info = {"distributedInfo": {"rank": 0, "world_size": 1024}}
    tally = tally_of(measured(*many(3), **info))
    row = tally.accounts["trust"][0]
    assert (row.rank, row.check, row.count, row.of) == (None, "ranks read", 1, 1024)
    assert "whether communication waits for the others is not seen" in row.finding


def test_groups_whose_members_were_not_read_are_named(measured):
    groups = [
        nccl(0, 10, group=("1", "TENSOR_MODEL_PARALLEL_GROUP"), ranks=(0, 1)),
        nccl(20, 30, group=("2", "DATA_PARALLEL_GROUP"), ranks=(0, 2)),
    ]
    info = {"distributedInfo": {"world_size": 4}}
    ranks = [measured(*groups, rank=rank, **info) for rank in (0, 1)]
    row = tally_of(*ranks).accounts["trust"][0]
    assert row.finding.endswith("members of DATA_PARALLEL_GROUP are among them")
