"""Who made the step late: each kind of fault put into a simulated pipeline, and found there."""

import random
from pathlib import Path

import pytest

from pipelines import MILLISECOND, Pipeline, op_table
from steptally.measure.stragglers.op_tables import program_of_tables
from steptally.measure.stragglers.verdicts import judge


def verdicts(pipeline):
    return judge(program_of_tables([(Path("ops.parquet"), op_table(pipeline))])).verdicts


def named(pipeline):
    return [(one.verdict, dict(one.coordinates)) for one in verdicts(pipeline)]


def slower(factor, **where):
    """Passes of the ranks at these coordinates take `factor` times as long."""

    def duration(step, dp, stage, microbatch):
        place = {"step": step, "dp": dp, "stage": stage, "microbatch": microbatch}
        return factor if all(place[axis] == at for axis, at in where.items()) else 1.0

    return duration


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_a_clean_run_has_no_verdict(seed, noise):
    assert named(Pipeline(dp=4, pp=4, steps=8, noise=noise, seed=seed)) == []


@pytest.mark.parametrize("factor", [1.3, 2, 3])
@pytest.mark.parametrize("place", [(0, 0), (2, 1), (3, 3)])
def test_a_slow_worker_is_named_alone(factor, place):
    dp, pp = place
    slow = slower(factor, dp=dp, stage=pp)
    (verdict,) = verdicts(Pipeline(dp=4, pp=4, forward=slow, backward=slow, noise=0.02))
    assert (verdict.verdict, verdict.coordinates) == ("slow-worker", {"dp": dp, "pp": pp})
    assert verdict.factor == pytest.approx(factor, rel=0.05)
    assert verdict.phase == ""


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_pass_that_alone_is_slow_is_named(phase):
    (verdict,) = verdicts(Pipeline(dp=4, pp=2, **{phase: slower(2, dp=1, stage=1)}))
    assert (verdict.verdict, verdict.phase) == ("slow-worker", phase)


def test_two_slow_workers_are_both_named():
    def slow(step, dp, stage, microbatch):
        return 1.8 if (dp, stage) in ((0, 1), (3, 2)) else 1.0

    found = named(Pipeline(dp=6, pp=4, steps=8, forward=slow, backward=slow))
    assert sorted(found, key=str) == [
        ("slow-worker", {"pp": 1, "dp": 0}),
        ("slow-worker", {"pp": 2, "dp": 3}),
    ]


@pytest.mark.parametrize("slow_replicas", [(2, 5), (0, 2, 5)])
@pytest.mark.parametrize("pp", [1, 2])
def test_ranks_that_are_slow_alike_are_named_together(slow_replicas, pp):
    # Each waits for none of the others, so that mending one alone brings nothing back.
    def slow(step, dp, stage, microbatch):
        return {True: 2.0, False: 1.1 if dp == 6 else 1.0}[dp in slow_replicas and stage == 0]

    (verdict,) = verdicts(Pipeline(dp=8, pp=pp, steps=8, forward=slow, backward=slow))
    assert verdict.verdict == "slow-worker"
    assert verdict.ranks == tuple(dp * pp for dp in slow_replicas)
    assert verdict.coordinates == ({"pp": 0} if pp > 1 else {})
    assert verdict.share_recovered > 0.9
    assert "are slow together" in verdict.evidence[-1]


def test_all_stages_of_a_replica_are_one_verdict():
    slow = slower(1.5, dp=2)
    assert named(Pipeline(dp=4, pp=4, forward=slow, backward=slow)) == [("slow-worker", {"dp": 2})]


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_stage_with_more_work_is_no_slow_worker(stage):
    slow = slower(1.5, stage=stage)
    found = named(Pipeline(dp=3, pp=4, forward=slow, backward=slow))
    assert found == [("stage-imbalance", {"pp": stage})]


def sequences(seed, replicas, *, steps=6, microbatches=8):
    draw = random.Random(seed)
    lengths = {
        (step, dp, batch): draw.choice([0.5, 1, 1, 2.5])
        for step in range(steps)
        for dp in range(replicas)
        for batch in range(microbatches)
    }
    return lambda step, dp, stage, batch: lengths[step, dp, batch]


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_micro_batches_of_unequal_work_blame_no_rank(pp):
    length = sequences(1, 8)
    found = named(Pipeline(dp=8, pp=pp, microbatches=8, forward=length, backward=length))
    assert found == [("sequence-imbalance", {})]


def test_sequences_and_a_long_stage_are_told_apart():
    # As the job SE of arXiv:2505.05713: sequence lengths first, the last stage second.
    length = sequences(2, 8)

    def slow(step, dp, stage, batch):
        return length(step, dp, stage, batch) * (1.4 if stage == 1 else 1.0)

    found = named(Pipeline(dp=8, pp=2, microbatches=8, forward=slow, backward=slow))
    assert found == [("sequence-imbalance", {}), ("stage-imbalance", {"pp": 1})]


@pytest.mark.parametrize("every", [1, 3])
def test_a_rank_that_waits_for_its_data_is_named_so(every):
    stalls = {(step, 1, 0): 100 * MILLISECOND for step in range(0, 12, every)}
    (verdict,) = verdicts(Pipeline(dp=4, pp=2, steps=12, stall_ns=stalls))
    assert (verdict.verdict, verdict.coordinates) == ("data-loading", {"dp": 1, "pp": 0})


def test_a_pause_every_third_step_is_a_pause_with_its_period():
    def paused(step, dp, stage, batch):
        return 4 if (step % 3, dp, stage, batch) == (1, 2, 1, 2) else 1.0

    (verdict,) = verdicts(Pipeline(dp=4, pp=2, steps=12, forward=paused))
    assert (verdict.verdict, verdict.coordinates) == ("pause", {"dp": 2, "pp": 1})
    assert "every 3 steps" in verdict.evidence[0]


def test_pauses_of_ranks_by_turns_are_one_verdict():
    # M108-07: garbage collection strikes random ranks.
    def paused(step, dp, stage, batch):
        return 8 if (step, dp, stage, batch) in ((2, 1, 0, 1), (6, 3, 1, 2), (10, 0, 0, 0)) else 1

    (verdict,) = verdicts(Pipeline(dp=4, pp=2, steps=12, forward=paused))
    assert verdict.verdict == "pause"
    assert verdict.ranks == (0, 2, 7)


def test_what_strikes_once_has_a_place_and_no_cause():
    def stuck(step, dp, stage, batch):
        return 30 if (step, dp, stage, batch) == (5, 2, 1, 2) else 1

    (verdict,) = verdicts(Pipeline(dp=4, pp=2, steps=12, forward=stuck))
    assert (verdict.verdict, verdict.coordinates) == ("not-identifiable", {"dp": 2, "pp": 1})
    assert verdict.share_recovered > 0.5
    assert "once" in verdict.evidence[-1]


def test_a_rank_that_is_slow_for_some_steps_in_a_row_does_not_pause():
    def slow(step, dp, stage, batch):
        return 3 if (dp, stage) == (2, 1) and 8 <= step < 11 else 1

    (verdict,) = verdicts(Pipeline(dp=4, pp=2, steps=16, forward=slow, backward=slow))
    assert (verdict.verdict, verdict.coordinates) == ("slow-worker", {"dp": 2, "pp": 1})
    assert "(8, 9, 10)" in verdict.evidence[0]
    assert "in a row" in verdict.evidence[0]


@pytest.mark.parametrize("later", [0, 5], ids=["together", "by turns"])
def test_ranks_that_are_slow_for_some_steps_in_a_row_do_not_pause(later):
    begins = {(0, 0): 4, (2, 1): 4 + later}

    def slow(step, dp, stage, batch):
        first = begins.get((dp, stage))
        return 3 if first is not None and first <= step < first + 3 else 1

    (verdict,) = verdicts(Pipeline(dp=3, pp=2, steps=16, forward=slow, backward=slow))
    assert (verdict.verdict, verdict.ranks) == ("slow-worker", (0, 5))
    assert "in a row" in verdict.evidence[0]
    assert "now and then" not in verdict.evidence[0]


def test_all_ranks_that_are_slow_together_blame_none():
    def slow(step, dp, stage, batch):
        return 2 if 8 <= step < 11 else 1

    (verdict,) = verdicts(Pipeline(dp=4, pp=2, steps=16, forward=slow, backward=slow))
    assert (verdict.verdict, verdict.coordinates) == ("not-identifiable", {})
    assert "another job" in verdict.evidence[-1]


def test_a_slow_worker_that_moves_data_slowly_too_is_one_verdict():
    slow = slower(2, dp=1, stage=2)
    (verdict,) = verdicts(
        Pipeline(
            dp=4,
            pp=4,
            forward=slow,
            backward=slow,
            message_ns=8 * MILLISECOND,
            link={(1, 2): 3.0},
            noise=0.02,
        )
    )  # 3 times is within 2 to send times 2 to receive
    assert (verdict.verdict, verdict.coordinates) == ("slow-worker", {"dp": 1, "pp": 2})
    assert sum("it moves data slowly too" in sentence for sentence in verdict.evidence) == 1


def test_a_rank_that_is_hardly_slow_is_not_taken_together_with_one_that_is_by_far():
    def slow(step, dp, stage, batch):
        return {(1, 1): 2.0, (1, 0): 1.12}.get((dp, stage), 1.0)

    found = verdicts(Pipeline(dp=4, pp=2, steps=16, forward=slow, backward=slow))
    assert (found[0].verdict, found[0].coordinates) == ("slow-worker", {"dp": 1, "pp": 1})
    assert found[0].factor == pytest.approx(2.0, rel=0.05)


def test_a_link_is_slow_itself_where_its_slow_worker_cannot_explain_it():
    slow = slower(1.3, dp=1, stage=2)
    found = verdicts(
        Pipeline(
            dp=4,
            pp=4,
            forward=slow,
            backward=slow,
            message_ns=8 * MILLISECOND,
            link={(1, 2): 4.0},
            noise=0.02,
        )
    )
    assert {one.verdict for one in found} == {"slow-worker", "slow-link"}
    # The worker does not bring back what the link loses.
    assert all(one.share_recovered < 0.9 for one in found)


def test_a_slow_link_is_told_from_slow_ranks():
    found = verdicts(
        Pipeline(dp=4, pp=4, message_ns=8 * MILLISECOND, link={(1, 2): 3.0}, noise=0.02)
    )
    # Stage 2 of replica 1 is rank 6: it sends activations to 7 and gradients to 5.
    assert {one.verdict for one in found} == {"slow-link"}
    assert sorted(one.ranks for one in found) == [(5, 6), (6, 7)]


def test_the_detectable_effect_grows_with_the_noise():
    quiet, loud = (
        judge(
            program_of_tables(
                [(Path("ops.parquet"), op_table(Pipeline(dp=4, pp=2, noise=noise, steps=8)))]
            )
        ).detectable
        for noise in (0.01, 0.2)
    )
    assert 1.03 <= quiet < loud


@pytest.mark.parametrize("seed", range(3))
def test_without_peers_a_worker_and_its_stage_look_alike_and_that_is_said(seed):
    slow = slower(2, stage=1)
    (verdict,) = verdicts(Pipeline(dp=1, pp=4, forward=slow, backward=slow, seed=seed))
    assert verdict.verdict == "stage-imbalance"
    assert "a slow worker would look the same" in " ".join(verdict.evidence)
