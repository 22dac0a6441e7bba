"""What a job calls the process groups of a trace."""

from steptally.cli.trace_groups import job_groups
from steptally.job import read_job


def names(*settings, model="llama-3-8b"):
    return job_groups(read_job(model, list(settings))).names


def test_members_have_the_name_of_their_axis():
    # tp2 · dp2 · pp2 in Megatron's order: rank = tp + 2 · dp + 4 · pp.
    found = names(
        "world_size=8", "tensor_model_parallel_size=2", "pipeline_model_parallel_size=2",
        "global_batch_size=8",
    )  # fmt: skip
    assert found[0, 1] == ("TENSOR_MODEL_PARALLEL_GROUP",)
    assert found[0, 2] == ("DATA_PARALLEL_GROUP",)
    assert found[0, 4] == ("PIPELINE_MODEL_PARALLEL_GROUP",)
    assert found[0, 1, 4, 5] == ("MODEL_PARALLEL_GROUP",)
    assert found[0, 1, 2, 3] == ("TENSOR_AND_DATA_PARALLEL_GROUP",)


def test_context_parallel_ranks_widen_the_data_parallel_group():
    found = names("world_size=8", "context_parallel_size=2", "global_batch_size=8")
    assert found[0, 1] == ("CONTEXT_PARALLEL_GROUP",)
    assert found[0, 2, 4, 6] == ("DATA_PARALLEL_GROUP",)
    assert found[0, 1, 2, 3, 4, 5, 6, 7] == ("DATA_PARALLEL_GROUP_WITH_CP",)


def test_members_that_can_be_of_two_axes_have_both_names():
    # ep2 on the same two ranks as tp2: a collective between them may be of either.
    found = names(
        "world_size=4", "tensor_model_parallel_size=2", "sequence_parallel=true",
        "expert_model_parallel_size=2", "expert_tensor_parallel_size=1", "global_batch_size=8",
        model="mixtral-8x7b",
    )  # fmt: skip
    assert found[0, 1] == ("TENSOR_MODEL_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP")


def test_groups_of_one_rank_have_no_name():
    assert names("world_size=1", "global_batch_size=1") == {}
