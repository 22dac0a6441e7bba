"""The accounts of two real Megatron-Core runs recorded by steptally itself (tests/data)."""

from collections import Counter

import pytest

from oracles.overlap import swept_step
from recordings import recorded_run, recorded_trace
from steptally.job import job_from_settings
from steptally.measure.overlap import step_times
from steptally.measure.run import measure_run
from steptally.predict.account import predict
from steptally.predict.traffic import predict_traffic

RUNS = ("tp2_dp2", "pp2")
RANKS = [("tp2_dp2", rank) for rank in range(4)] + [("pp2", rank) for rank in range(2)]

# (group, instances, communication, exposed, exposed alone), in ns, of the traced step. Rows of one
# rank differ from another's: each is what that process saw.
GROUPS = {
    ("tp2_dp2", 0): [
        ("DATA_PARALLEL_GROUP_WITH_CP", 3, 79695028, 79646858, 79646858),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", 1, 6589637, 6589637, 6589637),
        ("TENSOR_MODEL_PARALLEL_GROUP", 19, 109588904, 108545477, 108545477),
    ],
    ("pp2", 1): [
        ("DATA_PARALLEL_GROUP_WITH_CP", 3, 198021, 198021, 198021),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", 1, 11811357, 11811357, 11811357),
        ("PIPELINE_MODEL_PARALLEL_GROUP", 4, 17324266, 17324266, 17324266),
        ("TENSOR_MODEL_PARALLEL_GROUP", 6, 96742, 96742, 96742),
    ],
}


@pytest.mark.parametrize(("run", "rank"), RANKS)
def test_the_shares_of_a_step_are_those_of_a_sweep_over_every_edge(run, rank):
    (row,) = step_times(recorded_trace(run, rank))
    swept = swept_step(recorded_run(run).trace(rank), step=3)
    assert {part: getattr(row, f"{part}_ns") for part in swept} == swept


@pytest.mark.parametrize(("run", "rank"), GROUPS)
def test_communication_is_split_by_megatrons_groups(run, rank):
    (row,) = step_times(recorded_trace(run, rank))
    found = [
        (g.group, g.instances, g.communication_ns, g.exposed_ns, g.exposed_alone_ns)
        for g in row.groups
    ]
    assert found == GROUPS[run, rank]


@pytest.mark.parametrize(
    ("run", "flops"),
    # By hand, in FLOPs of one step over all ranks. A layer's forward on T = 32 tokens, B = 2
    # sequences of S = 16, is 2T(h(a+2g)d + (ad)h + 3hf) + 2·2·B·a·S²·d with h = 32, a = 4 heads,
    # g = 2 query groups, d = 8, f = 64: 2·32·(2048 + 1024 + 6144) + 4·2·4·256·8 = 655,360. The
    # output layer is 2·T·h·V = 2·32·32·256 = 524,288. Forward and backward are three times that.
    [("tp2_dp2", 3 * (655_360 + 524_288)), ("pp2", 3 * (2 * 655_360 + 524_288))],
)
def test_executed_flops_of_all_ranks_are_what_the_model_costs_by_hand(run, flops):
    figure = measure_run(recorded_run(run)).summary["flops_per_step_executed"]
    assert figure.value == flops
    assert figure.unit == "FLOP"
    assert figure.basis == "measured"


@pytest.mark.parametrize("run", RUNS)
def test_executed_flops_are_exactly_the_predicted_ones(run):
    directory = recorded_run(run)
    job = job_from_settings(directory.read_manifest()["settings"])
    measured = measure_run(directory).summary["flops_per_step_executed"].value
    assert measured == predict(job).summary["flops_per_step_executed"].value


def test_tensor_and_data_parallel_traffic_has_megatrons_calls_and_bytes():
    rows = measure_run(recorded_run("tp2_dp2")).accounts["traffic"]
    found = Counter(
        {
            (row.group, row.collective, row.phase, row.bytes_per_call): row.calls_per_step
            for row in rows
            if row.rank == 0
        }
    )
    # Sequence parallelism: 16 tokens x 32 hidden x 4 bytes are gathered before and scattered after
    # each of attention and MLP, scattered after the embedding, gathered before the output layer;
    # backward gathers the inputs of the three column-parallel layers a second time.
    activation = 16 * 32 * 4
    group = "TENSOR_MODEL_PARALLEL_GROUP"
    assert found[group, "all_gather", "forward", activation] == 3
    assert found[group, "reduce_scatter", "forward", activation] == 3
    assert found[group, "all_gather", "backward", activation] == 6
    assert found[group, "reduce_scatter", "backward", activation] == 3
    # Vocabulary-parallel cross entropy reduces the maximum, the label's logit and the sum of 16
    # tokens; the gradients of three RMSNorms of 32 are summed since each rank saw half the tokens.
    assert found[group, "all_reduce", "forward", 16 * 4] == 3
    assert found[group, "all_reduce", "outside autograd", 3 * 32 * 4] == 1
    # One bucket of this rank's parameters in fp32.
    parameters = 13_056 * 4
    group = "DATA_PARALLEL_GROUP_WITH_CP"
    assert found[group, "reduce_scatter", "gradients", parameters] == 1
    assert found[group, "all_gather", "outside autograd", parameters] == 1


@pytest.mark.parametrize(("run", "rank"), RANKS)
def test_measured_traffic_is_the_predicted_traffic(run, rank):
    directory = recorded_run(run)
    job = job_from_settings(directory.read_manifest()["settings"])
    predicted, measured = Counter(), Counter()
    for row in predict_traffic(job, rank):
        if row.phase != "logging":  # of this project's training loop, not of Megatron-Core
            predicted[row.group, row.collective, row.bytes_per_call] += row.calls_per_step
    for row in measure_run(directory).accounts["traffic"]:
        # Groups of one move nothing, and logging sums the loss and the tokens as two doubles.
        if row.rank == rank and row.group_size > 1 and row.dtype != "float64":
            measured[row.group, row.collective, row.bytes_per_call] += row.calls_per_step
    assert measured == predicted


def test_pipeline_stages_exchange_one_activation_a_micro_batch_each_way():
    rows = measure_run(recorded_run("pp2")).accounts["traffic"]
    found = {
        (row.rank, row.collective): (row.calls_per_step, row.bytes_per_call)
        for row in rows
        if row.group == "PIPELINE_MODEL_PARALLEL_GROUP"
    }
    activation = 16 * 32 * 4  # tokens x hidden x bytes
    assert found == {(rank, way): (2, activation) for rank in range(2) for way in ("send", "recv")}


@pytest.mark.parametrize("run", RUNS)
def test_a_whole_run_is_measured_without_warnings_or_refusals(run):
    tally = measure_run(recorded_run(run))
    assert tally.warnings == []
    assert tally.refusals == []
