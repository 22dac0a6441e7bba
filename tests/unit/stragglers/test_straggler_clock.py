"""One clock for all ranks: offsets, drifts, bounds, hosts, and who cannot be compared."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tests.recordings import recorded_run
from tests.straggler_recordings import DP, TP, recording, recordings, row, train

from steptally.measure.stragglers.clock import align, raw_clocks
from steptally.measure.stragglers.clock_graph import Edges, components, solve
from steptally.measure.stragglers.extract import ExtractOptions, extract_sources
from steptally.measure.stragglers.instances import pair
from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.places import manifest_places, placed
from steptally.trace.read import read_traces

US, SECOND = 1_000, 10**9


def aligned(made):
    return align(made, pair(made)).rows


def ends(group, members, leaves, kind="all-reduce", took=50 * US):
    """One member's rows: it is in each collective for `took` and leaves at these times."""
    return [
        row(group, members, leave - took, leave, kind=kind, sequence=number)
        for number, leave in enumerate(leaves)
    ]


def test_offsets_are_found_over_groups_that_no_two_ranks_share_alone():
    # Ranks 0 and 3 meet in the collective of all only, which is left out: paths of groups remain.
    job = [one for one in train(4, 2, steps=8) if one.group != "default_pg"]
    clocks = aligned(recordings(job, offsets={0: 5 * SECOND, 3: -7 * SECOND}))
    offsets = {rank: one.offset_ns for rank, one in clocks.items()}
    assert offsets[0] - offsets[1] == pytest.approx(-5 * SECOND, abs=2 * US)
    assert offsets[3] - offsets[1] == pytest.approx(7 * SECOND, abs=2 * US)
    assert offsets[2] - offsets[1] == pytest.approx(0, abs=2 * US)
    assert 0 in offsets.values()  # the median clock is kept as it is


def test_a_drift_is_followed_where_the_recording_is_long_enough_to_show_it():
    drift = 50e-6  # 50 parts per million: a poor oscillator
    clocks = aligned(recordings(train(4, 2, steps=40), drifts={2: drift}))
    assert clocks[2].drift == pytest.approx(-drift, rel=0.1)
    assert [clocks[rank].drift for rank in (0, 1, 3)] == [0, 0, 0]


def test_a_drift_that_the_ends_cannot_show_is_not_stated_and_its_effect_is_in_the_bound():
    drift = 50e-6
    job = train(4, 2, steps=2)
    span = max(max(one.leave.values()) for one in job)
    clocks = aligned(recordings(job, drifts={2: drift}))
    assert clocks[2].drift == 0
    assert clocks[2].bound_ns > drift * span / 2


def test_ranks_that_share_no_collective_with_the_others_are_not_connected():
    job = [one for one in train(6, 2, steps=4) if one.group == TP]
    made = recordings(job, offsets={5: 3 * SECOND})
    # Ranks 0 to 3 are joined by one more group; 4 and 5 are on their own.
    more = [
        recording(one.rank, [*one.communications.to_dicts(), *ends(DP, (0, 1, 2, 3), times)])
        if one.rank < 4
        else one
        for one in made
        for times in ([one.communications["leave_ns"].max() + 90 * US],)
    ]
    together = on_one_clock(more)
    clocks = together.clocks.rows
    assert [clocks[rank].connected for rank in range(6)] == [True] * 4 + [False] * 2
    # Among themselves they are aligned all the same.
    assert clocks[4].offset_ns - clocks[5].offset_ns == pytest.approx(3 * SECOND, abs=2 * US)
    (warning,) = together.warnings
    assert warning == (
        "ranks 4–5 share no collective with the others: their clocks cannot be compared, and "
        "their times are their own"
    )


def test_broadcasts_and_messages_say_nothing_of_clocks():
    times = [100 * US, 400 * US]
    made = [
        recording(0, ends(TP, (0, 1), times, kind="broadcast")),
        recording(1, ends(TP, (0, 1), [t + SECOND for t in times], kind="broadcast")),
    ]
    clocks = aligned(made)
    assert [one.connected for one in clocks.values()] == [False, False]
    assert [one.offset_ns for one in clocks.values()] == [0, 0]
    assert [one.bound_ns for one in clocks.values()] == [None, None]


def test_all_to_alls_are_used_where_other_ends_are_few_only():
    def made(all_reduces):
        even = [1_000 * US * n for n in range(1, all_reduces + 1)]
        own = [1_000 * US * n for n in range(all_reduces + 1, all_reduces + 60)]
        late = [time + 400 * US for time in own]  # this rank always gets its share last
        return [
            recording(0, [*ends(TP, (0, 1), even), *ends(DP, (0, 1), own, "all-to-all", 900 * US)]),
            recording(
                1, [*ends(TP, (0, 1), even), *ends(DP, (0, 1), late, "all-to-all", 900 * US)]
            ),
        ]

    few, many = aligned(made(2)), aligned(made(30))
    assert few[0].collectives == 61
    assert many[0].collectives == 30
    assert many[0].offset_ns == many[1].offset_ns == 0


def test_ranks_of_one_host_keep_its_clock():
    job = train(4, 2, steps=6, jitter=30 * US)
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    clocks = aligned(recordings(job, offsets={2: SECOND, 3: SECOND}, hosts=hosts))
    assert clocks[0].offset_ns == clocks[1].offset_ns
    assert clocks[2].offset_ns == clocks[3].offset_ns
    apart = clocks[2].offset_ns - clocks[0].offset_ns
    assert abs(apart + SECOND) <= clocks[0].bound_ns + clocks[2].bound_ns


def test_where_all_ranks_are_of_one_host_its_clock_is_the_common_one():
    made = recordings(train(4, 2, jitter=60 * US), hosts=dict.fromkeys(range(4), "a"))
    clocks = aligned(made)
    assert [(one.offset_ns, one.drift) for one in clocks.values()] == [(0, 0)] * 4
    assert {one.bound_ns for one in clocks.values()} == {1_000}  # what one kernel's clock is worth
    assert all(one.connected for one in clocks.values())


def test_a_rank_that_always_leaves_later_than_its_hosts_others_is_measured_into_its_bound():
    hosts = dict.fromkeys(range(2), "a")
    times = [1_000 * US * n for n in range(1, 40)]
    late = [time + 15 * US for time in times]
    made = [
        recording(0, ends(TP, (0, 1), times), host=hosts[0]),
        recording(1, ends(TP, (0, 1), late), host=hosts[1]),
    ]
    clocks = aligned(made)
    assert [one.offset_ns for one in clocks.values()] == [0, 0]
    assert clocks[1].bound_ns == 15 * US


def test_a_host_name_that_several_clocks_share_is_found_out():
    # Containers are often all called localhost.
    hosts = dict.fromkeys(range(4), "localhost")
    together = on_one_clock(recordings(train(4, 2), offsets={3: SECOND}, hosts=hosts))
    offsets = [together.clocks.rows[rank].offset_ns for rank in range(4)]
    assert offsets[3] - offsets[2] == pytest.approx(-SECOND, abs=3 * US)
    (warning,) = together.warnings
    assert warning.startswith("ranks 0–3 are said to run on localhost, but in ")


def test_the_bound_of_few_ends_is_their_shortest_transfer():
    made = [recording(rank, ends(TP, (0, 1), [100 * US, 900 * US])) for rank in (0, 1)]
    assert [one.bound_ns for one in aligned(made).values()] == [50 * US, 50 * US]


def test_the_bound_is_never_less_than_the_unit_of_the_times():
    times = [1_000 * US * n for n in range(1, 30)]
    whole = [recording(rank, ends(TP, (0, 1), times)) for rank in (0, 1)]
    assert all(US <= one.bound_ns < 2 * US for one in aligned(whole).values())
    finer = [time + 7 * number for number, time in enumerate(times)]
    fine = [recording(rank, ends(TP, (0, 1), finer)) for rank in (0, 1)]
    assert max(one.bound_ns for one in aligned(fine).values()) < US


def test_ends_that_one_instance_spoils_do_not_move_the_clock():
    times = [1_000 * US * n for n in range(1, 30)]
    spoilt = [time + (5 * SECOND if number % 6 == 0 else 0) for number, time in enumerate(times)]
    made = [recording(0, ends(TP, (0, 1), times)), recording(1, ends(TP, (0, 1), spoilt))]
    clocks = aligned(made)
    assert clocks[0].offset_ns == clocks[1].offset_ns == 0


def test_a_group_that_contradicts_all_others_is_weighted_down():
    job = train(6, 2, steps=10)
    made = recordings(job)
    # Every end of rank 1's data-parallel group is 2 s later than its other groups say.
    rows = made[1].communications.with_columns(
        leave_ns=pl.when(pl.col("group") == DP)
        .then(pl.col("leave_ns") + 2 * SECOND)
        .otherwise("leave_ns")
    )
    made[1] = replace(made[1], communications=rows)
    clocks = aligned(made)
    assert max(abs(one.offset_ns) for one in clocks.values()) < 5 * US


def test_times_of_a_frame_and_single_times_are_converted_alike():
    made = recordings(train(4, 2, steps=40), offsets={1: SECOND}, drifts={1: 80e-6})
    clocks = align(made, pair(made))
    frame = made[1].communications.with_columns(rank=pl.lit(1, pl.Int64))
    common = clocks.common(frame)
    assert clocks.rows[1].drift != 0
    singles = [clocks.common_time(1, time) for time in frame["enter_ns"]]
    assert common["enter_ns"].to_list() == singles


def test_raw_clocks_are_those_of_the_recordings():
    made = recordings(train(2, 2), offsets={1: SECOND})
    clocks = raw_clocks(made)
    assert [(one.offset_ns, one.bound_ns) for one in clocks.rows.values()] == [(0, None)] * 2


def test_offsets_solve_the_graph_exactly_and_parts_of_it_each_on_its_own():
    # A chain of 0, 1, 2 through two groups, and 3, 4 apart; 5 has no edge.
    edges = Edges(
        clock=np.array([0, 1, 1, 2, 3, 4]), group=np.array([0, 0, 1, 1, 2, 2]), clocks=6, groups=3
    )
    true = np.array([10.0, -4.0, 300.0, 7.0, 8.0, 0.0])
    difference = -true[edges.clock]
    found = solve(edges, difference, np.array([1.0, 5.0, 2.0, 9.0, 1.0, 1.0]))
    expected = [10 - 102, -4 - 102, 300 - 102, -0.5, 0.5, 0]  # less the means of the parts
    assert found == pytest.approx(expected, abs=1e-6)
    assert components(edges).tolist() == [0, 0, 0, 3, 3, 5]


def test_a_long_chain_of_neighbours_is_solved_to_the_nanosecond():
    # Pipelines join neighbours only: the longest path there is.
    count = 400
    clock = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1).ravel()
    group = np.repeat(np.arange(count - 1), 2)
    edges = Edges(clock=clock, group=group, clocks=count, groups=count - 1)
    true = np.random.default_rng(1).integers(-SECOND, SECOND, count).astype(float)
    found = solve(edges, -true[clock], np.ones(clock.size))
    assert found - found[0] == pytest.approx(true - true[0], abs=1)


@pytest.mark.parametrize("name", ["tp2_dp2", "pp2", "two_groups"])
def test_recorded_gloo_runs_keep_the_clock_of_their_machine(name):
    directory = recorded_run(name)
    sources = read_traces([directory.path])
    found = [one.recording for one in extract_sources(sources, ExtractOptions())]
    together = on_one_clock(placed(found, manifest_places(directory)))
    assert {one.offset_ns for one in together.clocks.rows.values()} == {0}
    assert all(one.connected for one in together.clocks.rows.values())
    assert max(one.bound_ns for one in together.clocks.rows.values()) < 150 * US
    assert together.pairing.refused == ()
    assert together.warnings == ()


def test_a_recorded_rank_whose_clock_is_moved_is_found_within_the_bounds():
    directory = recorded_run("tp2_dp2")
    found = [
        one.recording for one in extract_sources(read_traces([directory.path]), ExtractOptions())
    ]
    made = []
    for one in found:
        shift = SECOND if one.rank == 2 else 0
        rows = one.communications.with_columns(pl.col("enter_ns", "leave_ns") + shift)
        made.append(replace(one, communications=rows, host=None))
    clocks = on_one_clock(made).clocks.rows
    for rank in (0, 1, 3):
        apart = clocks[2].offset_ns - clocks[rank].offset_ns
        assert abs(apart + SECOND) <= clocks[2].bound_ns + clocks[rank].bound_ns
