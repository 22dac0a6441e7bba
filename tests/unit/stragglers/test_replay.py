"""The replay of a pipeline: exact where it is known, and the published what-if answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines import MILLISECOND, Pipeline, always, op_table
from steptally.errors import InputError
from steptally.measure.stragglers.ideal import ideal, mended, share_recovered, slowdown
from steptally.measure.stragglers.op_tables import program_of_tables
from steptally.measure.stragglers.replay import (
    measured_step_times,
    recorded,
    replay_graph,
    undelayed,
)
from steptally.measure.stragglers.verdicts import judge

OPS = Path(__file__).parents[4] / "shared" / "traces" / "ops"
needs_ops = pytest.mark.skipif(not OPS.exists(), reason="../shared is not here")


def program(pipeline):
    return program_of_tables([(Path("ops.parquet"), op_table(pipeline))])


@pytest.mark.parametrize("dp", [1, 3])
@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_a_step_replayed_takes_as_long_as_the_step(dp, pp, microbatches):
    # The simulation of tests/pipelines.py knows nothing of the replay.
    found = program(Pipeline(dp=dp, pp=pp, microbatches=microbatches, noise=0.3, steps=3))
    graph = replay_graph(found)
    assert list(graph.step_times(recorded(graph))) == list(measured_step_times(found))
    assert list(graph.step_times(undelayed(graph, recorded(graph)))) == list(
        measured_step_times(found)
    )


@pytest.mark.parametrize("factor", [0.5, 3])
def test_a_replay_with_other_durations_is_the_step_that_has_them(factor):
    slow = Pipeline(
        dp=2, pp=4, microbatches=6, noise=0, backward=lambda s, d, g, b: factor if g == 2 else 1
    )
    graph = replay_graph(program(replace(slow, backward=always)))
    durations = recorded(graph)
    table = graph.program.operations.with_row_index("row")
    rows = table.filter((pl.col("operation") == "backward-compute") & (pl.col("rank") % 4 == 2))
    work = durations.work.copy()
    work[rows["row"].to_numpy()] = round(slow.backward_ns * factor)
    changed = replace(durations, work=work)
    assert list(graph.step_times(changed)) == list(measured_step_times(program(slow)))


def test_an_ideal_step_of_equal_operations_is_the_step_itself():
    graph = replay_graph(program(Pipeline(dp=2, pp=4, noise=0)))
    durations = recorded(graph)
    fair = ideal(graph, durations)
    assert slowdown(graph.step_times(durations), graph.step_times(fair)) == 1.0


def test_nothing_lost_has_no_share_to_recover():
    step = np.array([5, 5])
    assert share_recovered(step, step, step) is None


def test_a_delay_that_only_one_rank_has_stays_in_the_replay():
    stalled = Pipeline(dp=2, pp=2, noise=0, stall_ns={(1, 1, 0): 30 * MILLISECOND})
    steps = judge(program(stalled)).replay
    assert [row.replayed_ns - row.undelayed_ns for row in steps[:3]] == [0, 30 * MILLISECOND, 0]
    assert all(row.replayed_ns == row.measured_ns for row in steps)


def test_operations_that_wait_in_a_circle_are_refused():
    found = program(Pipeline(dp=1, pp=1, steps=1))
    looped = replace(found, before=np.array([0, 1]), after=np.array([1, 0]))
    with pytest.raises(InputError, match="wait for each other in a circle"):
        replay_graph(looped)


# result-*.json, mw-*.json and ms-*.json beside the tables: tori / tideal, Mw and Ms.
@needs_ops
def test_ops_ar_one_slow_worker_is_named_and_nobody_else():
    found = judge(published("AR"))
    assert found.slowdown == pytest.approx(1.973, rel=0.02)
    (verdict,) = found.verdicts
    assert (verdict.verdict, verdict.coordinates) == ("slow-worker", {"dp": 0, "pp": 0})
    assert verdict.share_recovered == pytest.approx(1.0, abs=0.02)
    assert abs(found.replay_error) < 0.02


@needs_ops
def test_ops_st_the_last_stage_is_named_and_no_worker():
    found = judge(published("ST"))
    assert found.slowdown == pytest.approx(1.179, rel=0.02)
    (verdict,) = found.verdicts
    assert (verdict.verdict, verdict.coordinates) == ("stage-imbalance", {"pp": 3})
    assert verdict.share_recovered == pytest.approx(1.219, rel=0.03)
    assert abs(found.replay_error) < 0.02


@needs_ops
@pytest.mark.parametrize(
    ("name", "stage", "share"), [("AR", 3, -0.00121), ("ST", 3, 1.21936), ("AR", 0, 1.0)]
)
def test_giving_a_stage_its_peers_times_recovers_what_was_published(name, stage, share):
    graph = replay_graph(published(name))
    durations = undelayed(graph, recorded(graph))
    fair = ideal(graph, durations)
    ranks = [r for r, w in graph.program.workers.items() if w.coordinates["pp"] == stage]
    rows = graph.program.operations["rank"].is_in(ranks).to_numpy()
    times = (durations, mended(durations, fair, rows), fair)
    found = share_recovered(*(graph.step_times(one) for one in times))
    assert found == pytest.approx(share, abs=0.02)


def published(name):
    path = OPS / name / f"trace-{name}.parquet"
    return program_of_tables([(path, pl.read_parquet(path))])


def test_the_worked_example_of_the_formulas_page():
    # docs/formulas/stragglers.md: forward 20 and 30 ms, backward 40 and 60; then 5 + 1 + 4.
    def slow(step, dp, stage, microbatch):
        return 1.5 if dp == 1 else 1.0

    graph = replay_graph(
        program(Pipeline(dp=2, pp=1, steps=1, microbatches=1, noise=0, forward=slow, backward=slow))
    )
    durations = recorded(graph)
    fair = ideal(graph, durations)
    second = (graph.program.operations["rank"] == 1).to_numpy()
    step, whole, without = (
        graph.step_times(one) for one in (durations, fair, mended(durations, fair, second))
    )
    assert [list(times) for times in (step, whole, without)] == [
        [100 * MILLISECOND],
        [85 * MILLISECOND],
        [85 * MILLISECOND],
    ]
    assert slowdown(step, whole) == pytest.approx(1.176, abs=0.0005)
    assert share_recovered(step, without, whole) == 1.0
