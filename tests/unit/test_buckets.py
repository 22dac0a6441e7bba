"""Gradient buckets of Megatron's DDP; rehearsals compare whole jobs."""

import pytest

from steptally.job import job_from_settings
from steptally.predict.buckets import bucket_size, chunk_buckets
from steptally.predict.shard import Shard

SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "bf16": True,
    "world_size": 8,
}
SHARDED = {"use_distributed_optimizer": True}
OVERLAPPED = {"overlap_grad_reduce": True}


def elements(sizes, *, pp=0, vpp=0, **settings):
    """Elements of each bucket of parameters of these sizes, registered in this order."""
    job = job_from_settings({**SMALL, **settings})
    shards = [Shard(name=f"p{index}", elements=size) for index, size in enumerate(sizes)]
    return [group.elements for group in chunk_buckets(job, shards, pp=pp, vpp=vpp, expert=False)]


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, None),  # nothing to overlap: one bucket
        (OVERLAPPED, 40_000_000),
        (OVERLAPPED | {"ddp_bucket_size": 1000}, 1000),
        # Megatron-LM's get_model: 1 M a rank of data and context parallelism, above 40 of them.
        (OVERLAPPED | {"world_size": 64}, 64_000_000),
        (OVERLAPPED | {"world_size": 64, "context_parallel_size": 2}, 64_000_000),
        (OVERLAPPED | {"world_size": 64, "tensor_model_parallel_size": 2}, 40_000_000),
    ],
)
def test_the_size_at_which_a_bucket_closes(settings, size):
    assert bucket_size(job_from_settings({**SMALL, **settings})) == size


def test_without_the_distributed_optimizer_nothing_is_padded():
    assert elements([100, 7, 50]) == [157]


def test_with_it_parameters_start_at_64_and_buckets_end_at_128():
    # From the last: 50 → 64, then 7 → 71 → 128, then 100 → 228 → 256.
    assert elements([100, 7, 50], **SHARDED) == [256]


def test_buckets_end_at_a_multiple_of_the_replicas_too():
    # lcm(6, 128) = 384
    assert elements([100], world_size=6, global_batch_size=6, **SHARDED) == [384]


def test_a_bucket_closes_with_the_parameter_that_fills_it():
    settings = OVERLAPPED | {"ddp_bucket_size": 100}
    assert elements([30, 60, 80, 90, 20], **settings) == [20 + 90, 80 + 60, 30]


def test_only_the_first_chunk_of_the_first_stage_is_cut_by_size():
    settings = OVERLAPPED | {
        "ddp_bucket_size": 100,
        "num_layers": 4,
        "pipeline_model_parallel_size": 2,
    }
    assert elements([90, 90, 90], **settings) == [180, 90]
    assert elements([90, 90, 90], pp=1, **settings) == [270]
    assert elements([90, 90, 90], vpp=1, **settings) == [270]


def test_a_copy_of_the_shared_embedding_stands_alone():
    job = job_from_settings({**SMALL, **SHARDED, "pipeline_model_parallel_size": 2})
    embedding = Shard(name="embedding", elements=512, shared_embedding=True)
    layer = Shard(name="layer", elements=256)
    groups = chunk_buckets(job, [embedding, layer], pp=0, vpp=0, expert=False)
    assert [group.elements for group in groups] == [256, 512]


def test_expert_parameters_are_padded_for_their_own_replicas():
    experts = {"num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 4}
    job = job_from_settings({**SMALL, **SHARDED, **experts, "world_size": 12})
    shard = Shard(name="expert", elements=100, expert=True)
    # 12 / 4 = 3 replicas: lcm(3, 128) = 384
    (group,) = chunk_buckets(job, [shard], pp=0, vpp=0, expert=True)
    assert group.elements == 384
    assert not chunk_buckets(job, [shard], pp=0, vpp=0, expert=False)
