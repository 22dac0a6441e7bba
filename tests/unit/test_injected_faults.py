"""Faults of `steptally run --inject` on real ranks: of the size that was asked, in their place.

Two runs of one job (DP 2 × PP 2, so that ranks 0 and 1 are stage 0, 2 and 3 stage 1), one of them
with faults that are told apart by rank and step. Sizes are read from each rank's own recording,
with the delay over without it: what else the machine does meanwhile is on both sides.
"""

from statistics import median

import polars as pl
import pytest
from tests.rehearsals import needs_engine

from steptally.job import job_from_settings
from steptally.measure.overlap import host_activity, step_times
from steptally.measure.rank import measure_rank
from steptally.tally import tally_from_json
from steptally.trace.intervals import total
from steptally.trace.kineto import read_kineto
from steptally.trace.steps import step_windows

pytestmark = pytest.mark.processes

JOB = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "ffn_hidden_size": 1024,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "vocab_size": 256,
    "seq_length": 128,
    "micro_batch_size": 1,
    "global_batch_size": 4,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "world_size": 4,
    "pipeline_model_parallel_size": 2,
}
FAULTS = (
    "slow-rank=3:1.5x",
    "slow-stage=0:2x:backward",
    "data-stall=1:150ms:every=4",
    "gc-pause=2:120ms:every=3",
    "slow-link=dp:20ms",
    "slow-link=0-2:15ms",
)
STEPS, TRACED = 5, (3, 4, 5)
RANKS = range(4)
DELAY = "steptally::injected_delay"
DATA_PARALLEL, PIPELINE = "DATA_PARALLEL_GROUP_WITH_CP", "PIPELINE_MODEL_PARALLEL_GROUP"
MS = 1_000_000


def record(settings, specs, directory):
    needs_engine()
    from steptally.engine.availability import find_parts
    from steptally.run.faults.check import check_faults
    from steptally.run.faults.specification import parse_faults
    from steptally.run.launch import launch
    from steptally.run.preflight import prepare_run

    job = job_from_settings(settings)
    parts = find_parts()
    job = prepare_run(job, process_count=job.layout.world_size, parts=parts).job
    faults = parse_faults(specs)
    check_faults(faults, job, cuda=parts.cuda, steps=STEPS)
    return launch(
        job,
        steps=STEPS,
        warmup_steps=1,
        traced_steps=TRACED,
        directory=directory,
        faults=faults,
    )


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return record(JOB, (), tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    return record(JOB, FAULTS, tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def traces(faulty):
    return {rank: read_kineto(faulty.trace(rank)) for rank in RANKS}


def delays(trace):
    return trace.events.filter(pl.col("name") == DELAY)


def total_ns(events):
    return int((events["end_ns"] - events["start_ns"]).sum())


def of_step(trace, step):
    return trace.events.filter(pl.col("step") == step)


def main_thread(trace, step):
    """What the rank's main thread did in a step, in order; it alone runs the optimizer."""
    _, start, end = next(row for row in step_windows(trace.events).iter_rows() if row[0] == step)
    inside = trace.events.filter(pl.col("start_ns") >= start, pl.col("end_ns") <= end)
    thread = trace.events.filter(pl.col("kind") == "step")["thread"][0]
    kinds = ("operator", "wait", "issue", "collective", "transfer")
    return inside.filter(pl.col("thread") == thread, pl.col("kind").is_in(kinds)).sort("start_ns")


def longest_gap_ns(events):
    """The longest time between two of these events in which none of them runs."""
    ended = events["end_ns"].cum_max().shift(1)
    return int((events["start_ns"] - ended).max())


def backward_window(trace, step):
    """From where the first of autograd's nodes of a step begins to where the last ends."""
    nodes = of_step(trace, step).filter(pl.col("name").str.starts_with("autograd::engine"))
    return nodes["start_ns"].min(), nodes["end_ns"].max()


def test_a_slow_ranks_compute_takes_the_factor_that_was_asked_for(traces):
    factors = []
    for row in step_times(traces[3]):
        added = total_ns(delays(traces[3]).filter(pl.col("step") == row.step))
        factors.append(row.compute_ns / (row.compute_ns - added))
    assert median(factors) == pytest.approx(1.5, rel=0.15)


def test_a_slow_rank_is_slow_in_all_phases_of_its_step(traces):
    # A delay that the machine made too long is made up for later: so in some step, not in each.
    found = set()
    for step in TRACED:
        begin, end = backward_window(traces[3], step)
        starts = delays(traces[3]).filter(pl.col("step") == step)["start_ns"]
        found |= {(start > begin) + (start > end) for start in starts}
    assert found == {0, 1, 2}  # before, amid and behind backward


def test_a_rank_beside_it_in_the_same_stage_has_no_delay(traces):
    assert delays(traces[2]).is_empty()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slow_stage_is_slow_on_its_ranks_in_the_phase_that_was_named(traces, rank):
    factors = []
    for step in TRACED:
        begin, _ = backward_window(traces[rank], step)
        own = delays(traces[rank]).filter(pl.col("step") == step)
        assert (own["start_ns"] > begin).all()
        within = host_activity(traces[rank].events).within(begin, own["end_ns"].max())
        compute = total(within.compute)
        factors.append(compute / (compute - total_ns(own)))
    assert median(factors) == pytest.approx(2.0, rel=0.15)


def test_a_data_stall_is_a_gap_before_the_forward_of_that_rank_in_every_fourth_step(traces):
    def before_forward(rank, step):
        events = main_thread(traces[rank], step)
        lookup = events.filter(pl.col("name") == "aten::embedding")["start_ns"].min()
        return longest_gap_ns(events.filter(pl.col("start_ns") <= lookup))

    assert before_forward(1, 4) >= 150 * MS
    assert min(before_forward(1, step) for step in (3, 5)) < 150 * MS
    assert min(before_forward(0, step) for step in TRACED) < 150 * MS


def test_a_pause_is_a_gap_in_the_forward_of_that_rank_in_every_third_step(traces):
    def in_forward(rank, step):
        begin, _ = backward_window(traces[rank], step)
        events = main_thread(traces[rank], step)
        return longest_gap_ns(events.filter(pl.col("start_ns") < begin))

    assert in_forward(2, 3) >= 120 * MS
    assert min(in_forward(2, step) for step in (4, 5)) < 120 * MS
    assert min(in_forward(3, step) for step in TRACED) < 120 * MS


def transfers(traces, rank, group):
    return traces[rank].events.filter(pl.col("kind") == "transfer", pl.col("group") == group)


def test_a_slow_group_has_longer_transfers_of_gloos_own(traces):
    found = pl.concat(transfers(traces, rank, DATA_PARALLEL) for rank in RANKS)
    assert set(found["name"]) == {"gloo:all_reduce"}
    # One of two numbers is over in no time: a rank that lost its core can miss its end.
    longer = (found["end_ns"] - found["start_ns"]) >= 20 * MS
    assert longer.mean() > 0.75


@pytest.mark.parametrize("rank", RANKS)
def test_every_member_of_a_slow_group_leaves_each_of_its_collectives_late(traces, rank):
    trace = traces[rank]
    rows = trace.collectives.filter(pl.col("group_description") == DATA_PARALLEL)["event"]
    issued = trace.events[rows].filter(pl.col("kind") == "collective")
    waits = trace.events.filter(pl.col("kind") == "wait").sort("start_ns")
    assert len(issued) == len(TRACED) * (2 if rank > 1 else 1)  # gradients; the loss's two numbers
    for thread, start in issued.select("thread", "start_ns").iter_rows():
        own = waits.filter(pl.col("thread") == thread, pl.col("start_ns") > start)
        assert own["end_ns"][0] - start >= 20 * MS


def test_a_slow_link_between_two_ranks_holds_their_messages_and_no_others(traces):
    def shortest_ns(rank):
        found = transfers(traces, rank, PIPELINE)
        assert set(found["name"]) == {"gloo:send", "gloo:recv"}
        return (found["end_ns"] - found["start_ns"]).min()

    assert all(shortest_ns(rank) >= 15 * MS for rank in (0, 2))
    assert all(shortest_ns(rank) < 15 * MS for rank in (1, 3))


def test_flops_and_collectives_are_exactly_those_of_a_clean_run(clean, faulty):
    for rank in RANKS:
        one, other = (measure_rank(run.trace(rank), rank) for run in (clean, faulty))
        assert one.gemms.keys() == set(TRACED)
        for step in TRACED:
            assert one.gemms[step].rows == other.gemms[step].rows
            assert one.traffic[step] == other.traffic[step]


def test_the_loss_is_that_of_a_clean_run(clean, faulty):
    def losses(run):
        return {(line["step"], line["rank"]): line["loss"] for line in run.read_steps()}

    assert losses(clean) == losses(faulty)


def test_manifest_tally_and_comparison_say_what_was_injected(clean, faulty):
    from steptally.cli.account import account_for_run
    from steptally.tally import compare_tallies

    rows = faulty.read_manifest()["injected"]
    assert [row["spec"] for row in rows] == list(FAULTS)
    assert rows[1] == {
        "kind": "slow-stage",
        "spec": "slow-stage=0:2x:backward",
        "stage": 0,
        "factor": 2.0,
        "phase": "backward",
    }
    assert clean.read_manifest()["injected"] == []
    one, other = (account_for_run(run) for run in (clean, faulty))
    assert one.injected == []
    assert not any("injected" in warning for warning in one.warnings)
    assert tally_from_json(other.dumps()).injected == FAULTS
    assert any(FAULTS[0] in warning for warning in other.warnings)
    assert not any("FLOPs differ" in warning for warning in other.warnings)
    unequal = compare_tallies(one, other).unequal_work
    assert unequal == [f"injected faults: none against {', '.join(sorted(FAULTS))}"]
