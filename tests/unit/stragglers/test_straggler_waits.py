"""Wait and transfer of each rank in each collective, and who was the last to enter."""

import polars as pl
import pytest
from tests.device_traces import event, kernel, read_trace
from tests.recordings import SHARED_TRACES, needs_shared_traces, recorded_run
from tests.straggler_example import example
from tests.straggler_recordings import DP, TP, recording, recordings, row, train

from steptally.measure.stragglers.clock import raw_clocks
from steptally.measure.stragglers.extract import ExtractOptions, extract, extract_sources
from steptally.measure.stragglers.instances import pair
from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.places import manifest_places, placed
from steptally.measure.stragglers.waits import (
    WAITS,
    collective_rows,
    last_to_enter,
    wait_rows,
    wait_table,
    waits,
)
from steptally.trace.intervals import merge
from steptally.trace.read import read_traces

US = 1_000
PP = "PIPELINE_MODEL_PARALLEL_GROUP"


def waits_raw(made):
    return waits(made, pair(made), raw_clocks(made))


def test_wait_lasts_until_the_last_has_entered_and_transfer_from_then_on():
    entered, left = (100, 400, 250), (440, 442, 441)
    made = [
        recording(rank, [row(TP, (0, 1, 2), entered[rank], left[rank], sequence=0)])
        for rank in range(3)
    ]
    rows = waits_raw(made)
    assert rows.schema == WAITS
    assert rows.select("rank", "wait_ns", "transfer_ns").rows() == [
        (0, 300, 40),
        (1, 0, 42),
        (2, 150, 41),
    ]
    (one,) = collective_rows(rows)
    assert (one.last_to_enter, one.enter_skew_ns, one.leave_skew_ns) == (1, 300, 2)
    assert (one.group, one.axis, one.step, one.sequence, one.missing) == (TP, "tp", 0, 0, 0)
    assert [member.rank for member in one.members] == [0, 1, 2]


def test_exposed_are_the_parts_that_own_compute_does_not_cover():
    rows = [row(TP, (0, 1), 100, 300, sequence=0)]
    computing = recording(0, rows, compute=merge([0, 150, 220], [120, 160, 250]))
    other = recording(1, [row(TP, (0, 1), 200, 300, sequence=0)], compute=merge([0], [200]))
    first, second = waits_raw([computing, other]).iter_rows(named=True)
    assert (first["wait_ns"], first["exposed_wait_ns"]) == (100, 100 - 20 - 10)
    assert (first["transfer_ns"], first["exposed_transfer_ns"]) == (100, 100 - 30)
    assert (second["wait_ns"], second["exposed_transfer_ns"]) == (0, 100)


def test_a_rank_that_left_before_the_last_entered_waited_no_longer_than_it_stayed():
    # A message of eager size: sent and gone before anyone receives it.
    ends = {"source_rank": 0, "destination_rank": 1}
    sender = recording(0, [row(PP, (0, 1), 100, 110, kind="send", **ends)])
    receiver = recording(1, [row(PP, (0, 1), 500, 520, kind="recv", **ends)])
    rows = waits_raw([sender, receiver])
    assert rows.select("wait_ns", "transfer_ns").rows() == [(10, 0), (0, 20)]
    (one,) = collective_rows(rows)
    assert (one.collective, one.last_to_enter) == ("send", 1)
    assert last_to_enter(rows) == {0: 0, 1: 0}  # nobody waits for a receiver


def test_where_a_member_is_missing_nobody_is_last_and_no_wait_is_summed():
    job = train(3, 3, steps=1, each_step=3)
    rows = waits_raw(recordings(job, lost={(1, 0)}))
    first, *others = collective_rows(rows)
    assert (first.missing, first.last_to_enter) == (1, None)
    assert all(one.missing == 0 and one.last_to_enter is not None for one in others)
    assert sum(last_to_enter(rows).values()) == len(others)
    assert {row.instances for row in wait_rows(rows) if row.group == TP} == {2}


def test_who_was_last_is_not_told_where_the_clocks_cannot_tell_it():
    # Rank 1 enters 60 µs after rank 0; the bounds are the shortest transfer, 50 µs each.
    entered = {0: 1_000 * US, 1: 1_060 * US}
    made = [
        recording(rank, [row(TP, (0, 1), entered[rank], 1_110 * US, sequence=0)]) for rank in (0, 1)
    ]
    together = on_one_clock(made)
    assert [one.bound_ns for one in together.clocks.rows.values()] == [50 * US, 50 * US]
    rows = waits(made, together.pairing, together.clocks)
    assert [one.last_to_enter for one in collective_rows(rows)] == [None]
    assert last_to_enter(rows) == {0: 0, 1: 1}  # counted all the same, by the times as they are
    (raw,) = collective_rows(waits(made, together.pairing, raw_clocks(made)))
    assert raw.last_to_enter == 1


def test_members_that_enter_at_the_same_moment_have_no_last():
    made = [recording(rank, [row(TP, (0, 1), 100, 200, sequence=0)]) for rank in (0, 1)]
    rows = waits_raw(made)
    assert [one.last_to_enter for one in collective_rows(rows)] == [None]


def test_collectives_outside_of_steps_are_for_clocks_only():
    rows = [
        row(TP, (0, 1), 100, 200, step=None, sequence=0),
        row(TP, (0, 1), 300, 400, step=2, sequence=1),
    ]
    made = [recording(rank, rows) for rank in (0, 1)]
    assert pair(made).instances == 2
    assert waits_raw(made)["step"].unique().to_list() == [2]


def test_each_ranks_groups_are_summed_apart():
    job = train(4, 2, steps=2, each_step=3)
    rows = wait_rows(waits_raw(recordings(job)))
    told = {(one.rank, one.group): one for one in rows}
    assert {one.group for one in rows} == {TP, DP, "default_pg"}
    assert told[0, TP].instances == 6
    assert told[0, DP].axis == "dp"
    assert sum(one.last_to_enter for one in rows) == len(job)


def test_the_sums_of_steps_add_up_to_those_of_the_recording():
    rows = waits_raw(recordings(train(4, 2, steps=3, each_step=2)))
    steps, whole = wait_table(rows, by_step=True), wait_table(rows)
    assert steps["step"].unique().to_list() == [0, 1, 2]
    names = ("wait_ns", "transfer_ns", "exposed_wait_ns", "instances", "last_to_enter")
    added = steps.group_by("rank", "group", "axis").agg(pl.col(names).sum())
    assert added.sort("rank", "group").select(names).rows() == whole.select(names).rows()


def test_rows_can_be_capped_to_the_collectives_that_were_waited_for_longest():
    rows = waits_raw(recordings(train(4, 2, steps=3)))
    every, most = collective_rows(rows), collective_rows(rows, most=5)

    def waited(one):
        return sum(member.wait_ns for member in one.members)

    assert len(most) == 5
    longest = sorted(map(waited, every), reverse=True)[:5]
    assert sorted(map(waited, most), reverse=True) == longest


def test_the_worked_example_of_the_formulas():
    made = example()
    together = on_one_clock(made)
    clocks = together.clocks.rows
    assert [clocks[rank].offset_ns for rank in range(3)] == [1 * US, -5_000 * US, 0]
    assert [clocks[rank].bound_ns for rank in range(3)] == [40 * US, 40 * US, 41 * US]
    rows = waits(made, together.pairing, together.clocks)
    assert rows["wait_ns"].to_list() == [n * US for n in (299, 0, 150, 0, 201, 81, 199, 0, 290)]
    assert rows["transfer_ns"].to_list() == [n * US for n in (41, 42, 41, 40, 40, 41, 42, 40, 42)]
    first = rows.row(0, named=True)
    assert first["exposed_wait_ns"] == 269 * US
    assert [one.last_to_enter for one in collective_rows(rows)] == [1, None, 1]
    raw = waits(made, together.pairing, raw_clocks(made))
    assert raw["wait_ns"].to_list() == [n * US for n in (340, 0, 191, 40, 0, 122, 241, 0, 332)]


# Whole microseconds, names without arguments and one stream, as NCCL's profiles of 2021 have them.
# Enters of eight ranks in three collectives, in µs; they leave within 5 µs of each other.
KERNELS = ("SendRecv_RING_SIMPLE_Sum_int8_t", "AllReduce_RING_LL_Sum_float")
EIGHT_ENTER = [
    [310, 290, 640, 120, 980, 700, 560, 1400],
    [2000, 2200, 2100, 2300, 2050, 2950, 2150, 2250],
    [4100, 4000, 4300, 4200, 4150, 4350, 4050, 4800],
]
EIGHT_LEAVE = [1450, 3080, 5200]


def eight_ranks(folder, shift_us=lambda rank: 0):
    """Eight files as a profiler of 2021 would write them."""
    base = 1_661_203_462_000_000
    made = []
    for rank in range(8):
        events = []
        for number, entered in enumerate(EIGHT_ENTER):
            start = base + entered[rank] + shift_us(rank)
            end = base + EIGHT_LEAVE[number] + rank % 6 + shift_us(rank)
            name = f"ncclKernel_{KERNELS[number % 2]}(ncclDevComm*, unsigned long, ncclWork*)"
            placed_at = {"device": rank, "stream": 84, "correlation": number + 1}
            events.append(event("Kernel", name, start, end, process=rank, thread=84, **placed_at))
        events += kernel("gemm", base + shift_us(rank), base + 90 + shift_us(rank))
        about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
        trace = read_trace(folder / f"rank{rank}.json", *events, **about)
        made.append(extract(trace, rank, ExtractOptions()))
    return made


def test_eight_ranks_without_any_group_name_have_their_waits_exactly(tmp_path):
    made = eight_ranks(tmp_path)
    together = on_one_clock(made)
    assert together.pairing.refused == ()
    rows = waits(made, together.pairing, raw_clocks(made))
    assert last_to_enter(rows) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 0, 7: 2}
    total = rows.group_by("rank").agg(pl.col("wait_ns").sum()).sort("rank")
    expected = [
        sum(max(entered) - entered[rank] for entered in EIGHT_ENTER) * US for rank in range(8)
    ]
    assert total["wait_ns"].to_list() == expected
    assert {one.leave_skew_ns for one in collective_rows(rows)} == {5 * US}


def test_eight_ranks_on_clocks_that_differ_have_the_same_waits_within_the_bounds(tmp_path):
    made = eight_ranks(tmp_path, shift_us=lambda rank: 1_000_000 * rank)
    together = on_one_clock(made)
    rows = waits(made, together.pairing, together.clocks).sort("instance", "rank")
    bounds = together.clocks.bounds()
    for (rank, _), found, true in zip(
        rows.select("rank", "instance").iter_rows(),
        rows["wait_ns"],
        [max(entered) - own for entered in EIGHT_ENTER for own in entered],
        strict=True,
    ):
        assert abs(found - true * US) <= bounds[rank] + max(bounds.values())
    assert last_to_enter(rows)[7] == 2


@pytest.mark.parametrize("name", ["tp2_dp2", "pp2"])
def test_recorded_gloo_runs_account_for_every_collective_of_the_step(name):
    directory = recorded_run(name)
    sources = read_traces([directory.path])
    found = [one.recording for one in extract_sources(sources, ExtractOptions())]
    made = placed(found, manifest_places(directory))
    together = on_one_clock(made)
    rows = waits(made, together.pairing, together.clocks)
    recorded = sum(
        one.communications.filter(
            pl.col("step").is_not_null() & (pl.col("members").list.len() > 1)
        ).height
        for one in made
    )
    assert len(rows) == recorded
    assert (rows["missing"] == 0).all()
    whole = rows["leave_ns"] - rows["enter_ns"]
    assert (rows["wait_ns"] + rows["transfer_ns"] == whole).all()


@pytest.fixture(scope="module")
def dlrm():
    """The eight ranks of ../shared/traces/kineto/dlrm_v100_8ranks, and what holds on one clock."""
    sources = read_traces([SHARED_TRACES / "dlrm_v100_8ranks"])
    made = [one.recording for one in extract_sources(sources, ExtractOptions())]
    return made, on_one_clock(made)


# ../shared/traces/README.md: waits on raw clocks by rank, µs; who is last to enter, in how many.
DLRM_WAITS = [5580, 11125, 3280, 9571, 6370, 6041, 3342, 1534]
DLRM_LAST = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 2, 6: 0, 7: 5}


@needs_shared_traces
def test_dlrm_on_raw_clocks_is_exactly_as_its_readme_says(dlrm):
    made, together = dlrm
    rows = waits(made, together.pairing, raw_clocks(made))
    assert together.pairing.instances == 8
    assert last_to_enter(rows) == DLRM_LAST
    total = rows.group_by("rank").agg(pl.col("wait_ns").sum()).sort("rank")
    assert total["wait_ns"].to_list() == [wait * US for wait in DLRM_WAITS]
    skews = [one.leave_skew_ns for one in collective_rows(rows)]
    assert (min(skews), max(skews)) == (1 * US, 7 * US)


@needs_shared_traces
def test_dlrm_on_one_clock_is_the_same_within_the_stated_bounds(dlrm):
    made, together = dlrm
    bounds = together.clocks.bounds()
    # One node: the true offsets are 0, and the recorded ends agree within 7 µs.
    assert all(abs(one.offset_ns) <= bounds[rank] for rank, one in together.clocks.rows.items())
    assert max(bounds.values()) <= 7 * US
    rows = waits(made, together.pairing, together.clocks)
    raw = waits(made, together.pairing, raw_clocks(made))
    assert last_to_enter(rows) == DLRM_LAST
    most = max(bounds.values())
    for rank, one, other in zip(rows["rank"], rows["wait_ns"], raw["wait_ns"], strict=True):
        assert abs(one - other) <= bounds[rank] + most
    assert [one.last_to_enter for one in collective_rows(rows)] == [7, 7, 7, 7, 7, 5, 5, 4]
