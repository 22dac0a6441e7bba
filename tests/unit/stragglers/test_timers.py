"""Who is late by the phases of all ranks: waiting, own work, stages, data."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stragglers.phase_inputs import (
    iteration_line,
    phases,
    range_block,
    timers,
)

from steptally.measure.stragglers.phase_file import read_phase_table
from steptally.measure.stragglers.timer_log import read_timer_log
from steptally.measure.stragglers.timers import conclude_from_phases, shared_coordinates
from steptally.tally.straggler_rows import VERDICT_CLASSES

GRID = {rank: {"dp": rank % 4, "pp": rank // 4} for rank in range(8)}


def jitter(values, seed, scale=0.01):
    generator = np.random.default_rng(seed)
    return [value * (1 + scale * generator.standard_normal()) for value in values]


def blocks(sections, iterations=6):
    return [
        {name: jitter(times, hash_of(name) + number) for name, times in sections.items()}
        for number in range(iterations)
    ]


def hash_of(name):
    return sum(name.encode())


def test_the_rank_with_more_compute_that_waits_least_is_a_slow_worker():
    # Rank 2 computes 200 ms longer: the others wait these 200 ms in the gradients' all-reduce.
    sections = {
        "forward-compute": [200.0, 200.0, 267.0, 200.0],
        "backward-compute": [400.0, 400.0, 533.0, 400.0],
        "all-grads-sync": [220.0, 220.0, 20.0, 220.0],
    }
    found = conclude_from_phases(timers(*blocks(sections), step_ms=900.0))
    (row,) = found.verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (2,))
    assert row.factor == pytest.approx(800 / 600, rel=0.03)
    assert row.share_recovered is None
    assert "critical (20 % or more)" in row.evidence[1]
    # Neither forward (67 of 200) nor backward (133 of 200) explains 80 % alone; both do.
    assert "together, none of them" in row.evidence[2]


def test_behind_a_barrier_no_one_waits_in_a_timer_and_own_work_tells():
    # --barrier-with-L1-time is Megatron's default: all-grads-sync starts together on all ranks.
    sections = {
        "backward-compute": [400.0, 400.0, 400.0, 600.0],
        "all-grads-sync": [20.0, 20.0, 20.0, 20.0],
    }
    (row,) = conclude_from_phases(timers(*blocks(sections))).verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (3,))
    assert row.factor == pytest.approx(1.5, rel=0.03)


def test_a_slow_node_is_named_by_all_of_its_ranks():
    sections = {"backward-compute": [400.0] * 6 + [600.0] * 2}
    table = replace(timers(*blocks(sections)), hosts={6: "n3", 7: "n3"})
    (row,) = conclude_from_phases(table).verdicts
    assert (row.verdict, row.ranks, row.host) == ("slow-worker", (6, 7), "n3")
    assert row.factor == pytest.approx(1.5, rel=0.03)


def test_data_loading_counts_on_the_ranks_that_load():
    # Under pipeline parallelism only the first and the last stage read batches.
    sections = {"batch-generator": [300.0, 0.0, 0.0, 0.0], "forward-compute": [500.0] * 4}
    found = conclude_from_phases(timers(*blocks(sections)))
    assert (found.verdicts[0].verdict, found.verdicts[0].ranks) == ("data-loading", (0,))
    assert "on the median rank that loads" in found.verdicts[0].evidence[0]


def test_batch_generator_is_taken_out_of_forward_compute_and_named():
    sections = {
        "batch-generator": [5.0, 205.0, 5.0, 5.0],
        "forward-compute": [205.0, 405.0, 205.0, 205.0],
        "all-grads-sync": [230.0, 30.0, 230.0, 230.0],
    }
    (row,) = conclude_from_phases(timers(*blocks(sections))).verdicts
    assert (row.verdict, row.ranks) == ("data-loading", (1,))
    assert row.evidence[2] == "`batch-generator` takes 199.93 ms longer: 100.0 % of it."


def test_below_ten_percent_of_the_step_there_is_no_straggler_and_the_note_has_the_numbers():
    sections = {"backward-compute": [400.0, 400.0, 400.0, 480.0]}
    found = conclude_from_phases(timers(*blocks(sections)))
    assert found.verdicts == ()
    (note,) = found.notes
    assert note.startswith("no straggler: rank 3 spends 4")
    assert "below 10 %" in note
    assert found.detectable == pytest.approx(1.10)


def test_within_the_noise_there_is_no_straggler_however_large():
    table = phases(*((rank, "work", ms) for rank, ms in enumerate([100, 250, 180, 300, 120, 340])))
    found = conclude_from_phases(table)
    assert found.verdicts == ()
    assert "within the noise" in found.notes[0]
    assert found.detectable > 1.5


def test_two_ranks_once_are_not_enough_to_know_the_noise():
    found = conclude_from_phases(phases((0, "work", 100), (1, "work", 200)))
    (row,) = found.verdicts
    assert row.verdict == "not-identifiable"
    assert "record 4 or more" in row.evidence[1]


def test_ranks_that_are_late_together_are_named_together_with_shared_coordinates():
    waits = [20.0, 220.0, 220.0, 220.0, 21.0, 220.0, 220.0, 220.0]
    sections = {"nccl": waits}
    table = timers(*blocks(sections))
    (row,) = conclude_from_phases(table, GRID).verdicts
    assert row.ranks == (0, 4)
    assert row.coordinates == {"dp": 0}
    assert "not recorded" in row.evidence[2]


def test_a_pipelined_log_without_coordinates_is_not_identifiable():
    sections = {
        "backward-compute": [400.0] * 4 + [600.0] * 4,
        "forward-recv": [0.0] * 4 + [9.0] * 4,
    }
    table = timers(*blocks(sections))
    (row,) = conclude_from_phases(table).verdicts
    assert row.verdict == "not-identifiable"
    assert "Give the ranks' coordinates" in row.evidence[0]


def test_with_coordinates_a_heavy_stage_is_a_stage_and_no_worker():
    sections = {
        "backward-compute": [400.0] * 4 + [600.0] * 4,
        "forward-recv": [0.0] * 4 + [9.0] * 4,
    }
    found = conclude_from_phases(timers(*blocks(sections)), GRID)
    (row,) = found.verdicts
    assert (row.verdict, row.coordinates) == ("stage-imbalance", {"pp": 1})
    assert row.ranks == (4, 5, 6, 7)
    assert row.factor == pytest.approx(1.5, rel=0.03)


def test_with_coordinates_a_slow_rank_of_a_stage_is_found_among_its_stage():
    work = [400.0] * 4 + [400.0, 400.0, 620.0, 400.0]
    sections = {"backward-compute": work, "forward-recv": [0.0] * 4 + [9.0] * 4}
    found = conclude_from_phases(timers(*blocks(sections)), GRID)
    (row,) = found.verdicts
    assert (row.verdict, row.coordinates) == ("slow-worker", {"dp": 2, "pp": 1})


def test_extremes_say_that_ranks_differ_not_who_and_how_to_record_it():
    lines = [
        iteration_line(1, 1000.0),
        *range_block({"forward-compute": (200.0, 420.0), "batch-generator": (1.0, 2.0)}),
    ]
    (row,) = conclude_from_phases(read_timer_log(lines, "x")).verdicts
    assert row.verdict == "not-identifiable"
    assert row.ranks == ()
    assert "they differ by 22.0 % of the step" in row.evidence[0]
    assert "`--timing-log-option all --timing-log-level 2`" in row.evidence[1]


def test_extremes_that_are_close_make_no_verdict():
    lines = [iteration_line(1, 1000.0), *range_block({"forward-compute": (200.0, 230.0)})]
    found = conclude_from_phases(read_timer_log(lines, "x"))
    assert found.verdicts == ()
    assert "no phase differs" in found.notes[0]


def test_the_slowest_alone_tells_no_difference():
    lines = [
        iteration_line(1, 1000.0),
        "max time across ranks (ms):",
        "    forward-compute ................................: 420.00",
    ]
    (row,) = conclude_from_phases(read_timer_log(lines, "x")).verdicts
    assert row.verdict == "not-identifiable"
    assert row.evidence[0] == "The log has the slowest rank's time of each phase only."


def test_a_stated_kind_wins_over_the_name():
    # FSDP gathers in forward and in backward: a table may say that both hold waiting.
    rows = ["rank,section,ms,kind"]
    for rank, (work, wait) in enumerate([(90, 200), (91, 199), (190, 100), (89, 201)]):
        rows += [f"{rank},optimizer,{work},own", f"{rank},forward,{wait},synchronous"]
    (row,) = conclude_from_phases(read_phase_table("\n".join(rows), "t")).verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (2,))
    assert "`optimizer` takes 100.00 ms longer" in row.evidence[2]


def test_the_host_of_a_culprit_is_told_where_the_table_has_it():
    table = replace(timers(*blocks({"nccl": [9.0, 300.0, 300.0, 300.0]})), hosts={0: "node7"})
    assert conclude_from_phases(table).verdicts[0].host == "node7"


def test_coordinates_name_ranks_only_where_they_name_exactly_them():
    assert shared_coordinates((4, 5, 6, 7), GRID) == {"pp": 1}
    assert shared_coordinates((0, 5), GRID) == {}
    assert shared_coordinates((0, 9), GRID) == {}


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    ranks=st.integers(4, 16),
    culprit=st.integers(0, 15),
    factor=st.floats(1.3, 3.0),
    seed=st.integers(0, 10_000),
)
def test_a_rank_that_is_slow_beyond_the_stated_effect_is_found(ranks, culprit, factor, seed):
    culprit %= ranks
    work = [500.0] * ranks
    work[culprit] *= factor
    longest = max(work)
    waits = [longest - ms + 20.0 for ms in work]
    made = [
        {"backward-compute": jitter(work, seed + i), "nccl": jitter(waits, seed + 100 + i)}
        for i in range(5)
    ]
    found = conclude_from_phases(timers(*made, step_ms=longest + 30.0))
    assert [(row.verdict, row.ranks) for row in found.verdicts] == [("slow-worker", (culprit,))]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(ranks=st.integers(2, 32), iterations=st.integers(1, 8), seed=st.integers(0, 10_000))
def test_ranks_that_differ_by_noise_alone_get_no_worker_blamed(ranks, iterations, seed):
    made = [
        {
            "backward-compute": jitter([500.0] * ranks, seed + i, scale=0.03),
            "nccl": jitter([100.0] * ranks, seed + 50 + i, scale=0.1),
        }
        for i in range(iterations)
    ]
    found = conclude_from_phases(timers(*made, step_ms=620.0))
    assert [row for row in found.verdicts if row.verdict == "slow-worker"] == []


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["nccl", "forward", "backward", "data", "step", "forward-recv"]),
            st.floats(0, 1e6),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_table_gives_conclusions_of_known_classes(rows):
    found = conclude_from_phases(phases(*rows))
    assert {row.verdict for row in found.verdicts} <= set(VERDICT_CLASSES)
    assert found.verdicts or found.notes
