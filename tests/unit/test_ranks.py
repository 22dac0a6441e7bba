"""Process groups that are parts of others: embedding groups, optimizer instances."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.ranks import all_groups, coordinates, group_ranks

BASE = {
    "num_layers": 4,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "seq_length": 16,
    "vocab_size": 256,
}


def job(**settings):
    return job_from_settings({**BASE, **settings})


def test_megatrons_own_example_of_sixteen_ranks():
    # initialize_model_parallel's docstring: 16 GPUs, TP2 PP4
    example = job(world_size=16, tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
    assert list(all_groups(example, "PIPELINE_MODEL_PARALLEL_GROUP")) == [
        (0, 4, 8, 12),
        (1, 5, 9, 13),
        (2, 6, 10, 14),
        (3, 7, 11, 15),
    ]
    assert next(all_groups(example, "DATA_PARALLEL_GROUP")) == (0, 2)


@pytest.mark.parametrize(
    ("settings", "embedding_ranks"),
    [
        ({}, (0, 3)),  # tied: first and last
        ({"untie_embeddings_and_output_weights": True}, (0,)),
        ({"untie_embeddings_and_output_weights": True, "mtp_num_layers": 1}, (0, 3)),
        ({"pipeline_model_parallel_layout": "Ett|t|tm|L", "mtp_num_layers": 1}, (0, 2, 3)),
    ],
)
def test_the_embedding_group_joins_the_stages_that_hold_the_table(settings, embedding_ranks):
    staged = job(world_size=4, pipeline_model_parallel_size=4, **settings)
    assert group_ranks(staged, "EMBEDDING_GROUP", 0) == embedding_ranks
    assert group_ranks(staged, "EMBEDDING_GROUP", 1) == ()


def test_optimizer_instances_split_the_data_parallel_group_in_consecutive_parts():
    # create_hierarchical_groups' docstring: [2, 2] over four ranks → [0, 1], [2, 3] and [0, 2]
    split = job(world_size=4, num_distributed_optimizer_instances=2)
    assert group_ranks(split, "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", 2) == (2, 3)
    assert group_ranks(split, "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1", 2) == (0, 2)
    assert group_ranks(split, "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", 3) == (2, 3)


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(InputError, match="use 0 to 3"):
        coordinates(job(world_size=4).layout, 4)


def test_an_unknown_group_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="did you mean 'EMBEDDING_GROUP'"):
        group_ranks(job(), "EMBEDING_GROUP", 0)


def test_optimizer_instances_that_do_not_divide_are_refused():
    uneven = job(world_size=3, num_distributed_optimizer_instances=2)
    with pytest.raises(InputError, match="does not divide the 3 ranks"):
        group_ranks(uneven, "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", 0)
