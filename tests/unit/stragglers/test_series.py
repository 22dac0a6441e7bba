"""Verdicts from iteration times alone."""

import numpy as np
import pytest
from tests.unit.stragglers.phase_inputs import iteration_line

from steptally.measure.log import parse_line
from steptally.measure.steps import read_steps
from steptally.measure.stragglers.series import (
    IterationSeries,
    Schedule,
    conclude_from_series,
    series_of_log,
    series_of_steps,
)
from steptally.measure.stragglers.series_statistics import (
    change_point,
    find_period,
    kolmogorov_tail,
    segments,
)
from steptally.measure.stragglers.sources import conclude_from_file


def noise(count, seed=0, level=1000.0, scale=0.02):
    return level * np.exp(scale * np.random.default_rng(seed).standard_normal(count))


def series(values, interval=1):
    return IterationSeries(
        source="train.log",
        iterations=tuple(interval * (at + 1) for at in range(len(values))),
        ms=tuple(float(value) for value in values),
        interval=interval,
    )


def test_steady_noise_gives_no_verdict_and_states_what_would_have_been_seen():
    found = conclude_from_series(series(noise(200)))
    assert found.verdicts == ()
    # 2 % of noise over 200 points: 6.66 · 0.02 / √200 = 0.9 %, so the 10 % of impact decide.
    assert found.detectable == pytest.approx(1.10)
    assert "a lasting change from 10.0 % on" in found.notes[-1]


def test_much_noise_raises_the_least_effect_that_is_stated():
    found = conclude_from_series(series(noise(20, scale=0.3)))
    assert found.verdicts == ()
    assert found.detectable > 1.25  # 6.66 · 0.3 / √20 = 45 %, by the noise of these 20 points


def test_a_pause_every_hundred_iterations_is_named_with_its_period():
    values = noise(600)
    values[40::100] += 60_000.0
    (row,) = conclude_from_series(series(values)).verdicts
    assert row.verdict == "pause"
    assert "every 100 iterations (6 on 6 places" in row.evidence[0]
    assert "--manual-gc" in row.evidence[2]


def test_a_period_that_the_job_states_is_named_by_its_flag():
    values = noise(500)
    values[49::50] += 5_000.0
    found = conclude_from_series(series(values), Schedule(save_interval=50))
    why = found.verdicts[0].evidence[1]
    assert why == "The job's --save-interval is 50: these are its checkpoints."


def test_pauses_at_random_places_have_no_period():
    values = noise(300)
    values[[11, 57, 140, 149, 201, 288]] += 40_000.0  # 44 % of the time
    (row,) = conclude_from_series(series(values)).verdicts
    assert row.verdict == "not-identifiable"
    assert "at no fixed period" in row.evidence[0]


def test_pauses_that_cost_nothing_to_speak_of_are_a_note():
    values = noise(300)
    values[[11, 57, 140]] += 300.0
    found = conclude_from_series(series(values))
    assert found.verdicts == ()
    assert "at no fixed period" in found.notes[0]


def test_a_step_change_is_seen_and_no_rank_is_blamed():
    values = np.concatenate([noise(120), noise(80, seed=1, level=1800.0)])
    (row,) = conclude_from_series(series(values)).verdicts
    assert (row.verdict, row.ranks) == ("not-identifiable", ())
    assert row.evidence[0].startswith("From iteration 121 on every iteration is slower")
    assert row.factor == pytest.approx(1.8, rel=0.02)


def test_a_slow_phase_that_ends_is_told_from_to():
    values = np.concatenate([noise(100), noise(60, seed=1, level=1500.0), noise(100, seed=2)])
    (row,) = conclude_from_series(series(values)).verdicts
    assert "iterations 101 to 160 take 15" in row.evidence[0]


def test_growth_on_a_line_is_a_leak_and_no_phase():
    values = noise(150) * (1 + np.arange(150) / 150)
    (row,) = conclude_from_series(series(values)).verdicts
    assert row.verdict == "not-identifiable"
    assert "grows on a straight line" in row.evidence[0]
    assert "leak" in row.evidence[1]
    assert row.factor == pytest.approx(2.0, rel=0.05)


def test_a_change_below_ten_percent_is_a_note():
    values = np.concatenate([noise(100, scale=0.005), noise(100, level=1040.0, scale=0.005)])
    found = conclude_from_series(series(values))
    assert found.verdicts == ()
    assert "changes 1 times" in found.notes[1]


def test_the_first_line_of_a_start_is_left_out_as_warm_up_and_so_is_a_smaller_batch():
    lines = [parse_line(iteration_line(n, ms)) for n, ms in [(1, 9000.0), (2, 100.0), (3, 101.0)]]
    assert series_of_log(lines, "x").ms == (100.0, 101.0)


def test_steps_of_a_run_directory_count_by_their_slowest_rank_without_traced_ones():
    records = [
        {"step": step, "rank": rank, "duration_ns": 10**6 * (step + rank), "traced": step == 2}
        for step in (1, 2, 3)
        for rank in (0, 1)
    ]
    found = series_of_steps(read_steps(records, 2), "run")
    assert (found.iterations, found.ms) == ((1, 3), (2.0, 4.0))


def test_a_log_gives_its_series_and_its_schedule(tmp_path):
    values = noise(400)
    values[49::50] += 5_000.0
    lines = ["  save_interval ................................... 50"]
    lines += [iteration_line(at + 1, float(ms)) for at, ms in enumerate(values)]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    (row,) = conclude_from_file(path).verdicts
    assert row.verdict == "pause"
    assert "--save-interval is 50" in row.evidence[1]


def test_few_points_say_what_they_cannot_tell():
    found = conclude_from_series(series([100.0, 101.0]))
    assert found.verdicts == ()
    assert "pauses and changes need 15" in found.notes[0]


def test_three_equal_distances_of_many_points_are_a_period_and_of_few_are_chance():
    assert find_period(np.array([100, 200, 300]), 400).points == 100
    assert find_period(np.array([1, 2, 3]), 10) is None
    assert find_period(np.array([3, 50, 300]), 400) is None


def test_the_change_point_is_where_the_level_changes():
    values = np.concatenate([np.zeros(30), np.ones(20)])
    assert change_point(values) == 30
    assert [(s.start, s.stop) for s in segments(values)] == [(0, 30), (30, 50)]


def test_kolmogorovs_points_are_those_of_the_tables():
    # Smirnov 1948: 10 % at 1.224, 5 % at 1.358, 1 % at 1.628.
    assert [round(kolmogorov_tail(x), 3) for x in (1.224, 1.358, 1.628)] == [0.1, 0.05, 0.01]
