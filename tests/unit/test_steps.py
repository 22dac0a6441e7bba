"""Which steps of a run count, and what their walls come to."""

import pytest

from steptally.measure.steps import (
    memory_rows,
    read_steps,
    step_figures,
    step_refusals,
    step_warnings,
)


def line(step, rank, seconds, **more):
    return {"step": step, "rank": rank, "duration_ns": round(seconds * 1e9), "tokens": 256, **more}


def run(*walls, **more):
    """Steps of two ranks, of which rank 1 is the slower."""
    return [
        line(step, rank, seconds if rank else seconds / 2, **more)
        for step, seconds in enumerate(walls, start=1)
        for rank in (0, 1)
    ]


def test_a_steps_wall_is_its_slowest_ranks_and_the_time_is_their_median():
    figures = step_figures(read_steps(run(0.4, 0.2, 0.9), world_size=2))
    assert figures["step_time_s"].value == 0.4
    assert figures["step_time_min_s"].value == 0.2
    assert figures["step_time_max_s"].value == 0.9
    assert "3 untraced steps (1–3)" in figures["step_time_s"].origin


def test_warm_up_and_traced_steps_do_not_enter_the_step_time():
    records = [
        line(1, 0, 9.0, warmup=True),
        line(2, 0, 0.3),
        line(3, 0, 0.6, traced=True),
        line(4, 0, 0.5),
    ]
    steps = read_steps(records, world_size=1)
    figures = step_figures(steps)
    assert (list(steps.warmup), list(steps.traced), list(steps.counted)) == ([1], [3], [2, 4])
    assert figures["step_time_s"].value == 0.4
    assert figures["tracing_cost"].value == pytest.approx(0.6 / 0.4)
    assert "1 traced step (3)" in figures["tracing_cost"].origin


def test_tokens_per_second_are_of_the_whole_job_and_of_one_device():
    figures = step_figures(read_steps(run(0.5), world_size=2))
    assert figures["tokens_per_step"].value == 256
    assert figures["tokens_per_s"].value == 512
    assert figures["tokens_per_s_per_device"].value == 256


def test_the_last_steps_of_a_killed_run_are_left_out_and_named():
    records = [*run(0.5, 0.5), line(3, 0, 0.1), line(4, 0, 0.1)]
    steps = read_steps(records, world_size=2)
    assert list(steps.counted) == [1, 2]
    (warning,) = step_warnings(steps)
    assert "2 unfinished steps (3–4)" in warning
    assert "of 2 ranks recorded only 0" in warning


def test_a_rank_that_recorded_nothing_leaves_no_step_complete():
    steps = read_steps([line(1, 0, 0.1)], world_size=2)
    assert step_figures(steps).keys() == set()
    (refusal,) = step_refusals(steps)
    assert "step_time_s" in refusal
    assert "run more steps" in refusal


def test_where_every_step_is_traced_there_is_no_step_time():
    steps = read_steps(run(0.1, 0.1, traced=True), world_size=2)
    assert "step_time_s" not in step_figures(steps)
    assert "none is both untraced and after warm-up" in step_refusals(steps)[0]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([line(1, 0, 0.1), line(2, 0, 0.1, tokens=512)], "from 256 to 512"),
        ([line(1, 0, 0.1, tokens=None)], "unknown number"),
    ],
)
def test_steps_of_unequal_or_unknown_tokens_have_no_rate(records, words):
    steps = read_steps(records, world_size=1)
    assert "step_time_s" in step_figures(steps)
    assert "tokens_per_s" not in step_figures(steps)
    assert words in step_refusals(steps)[0]


@pytest.mark.parametrize("record", [None, 7, [], {}, {"step": "x"}, {"step": 1, "rank": 0}])
def test_lines_that_are_no_step_records_are_counted(record):
    steps = read_steps([record, *run(0.1)], world_size=2)
    assert step_warnings(steps) == ["1 line of steps.jsonl is no step record: left out"]
    assert list(steps.counted) == [1]


def test_a_step_recorded_twice_counts_as_it_was_last():
    steps = read_steps([line(1, 0, 0.5), line(1, 0, 0.2)], world_size=1)
    assert steps.counted == {1: 200_000_000}


def test_the_loss_is_that_of_the_ranks_that_compute_it():
    records = [
        line(1, 0, 0.1),
        line(1, 1, 0.1, loss=5.5),
        line(2, 0, 0.1),
        line(2, 1, 0.1, loss=5.0),
    ]
    figures = step_figures(read_steps(records, world_size=2))
    assert (figures["loss_first"].value, figures["loss_last"].value) == (5.5, 5.0)


def test_a_loss_that_is_no_number_is_news():
    records = [line(1, 0, 0.1, loss=None, not_finite=["loss"])]
    assert "not a finite number in step 1" in step_warnings(read_steps(records, world_size=1))[0]


def test_peak_memory_is_the_highest_that_each_rank_reported():
    records = [
        line(1, 0, 0.1, peak_memory_bytes=10),
        line(2, 0, 0.1, peak_memory_bytes=30),
        line(1, 1, 0.1, peak_memory_bytes=20),
    ]
    steps = read_steps(records, world_size=2)
    assert [(row.rank, row.bytes) for row in memory_rows(steps, "resident")] == [(0, 30), (1, 20)]
    assert step_figures(steps)["peak_memory_bytes_max"].value == 30


def test_every_figure_is_measured_and_says_where_it_comes_from():
    figures = step_figures(read_steps(run(0.1, 0.2), world_size=2))
    assert all(figure.basis == "measured" and figure.origin for figure in figures.values())
