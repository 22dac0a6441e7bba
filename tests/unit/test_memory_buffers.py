"""Buffers of parameters and gradients against the traffic account's buckets, to the element."""

import pytest
from hypothesis import given, settings
from tests.property.random_jobs import jobs

from steptally.job import job_from_settings
from steptally.predict.buckets import chunk_buckets
from steptally.predict.memory.buffers import chunk_buffers, chunk_weights
from steptally.predict.memory.dimensions import dimensions
from steptally.predict.memory.program import stage_programs
from steptally.predict.memory.weights import layer_weights
from steptally.predict.shards import chunk_shards
from steptally.predict.stages import model_chunks


def both_counts(job):
    """(elements here, elements of the buckets) of every chunk, dense and expert."""
    sizes = dimensions(job)
    programs = stage_programs(job)
    for chunk in model_chunks(job):
        program = programs[chunk.pp][chunk.vpp]
        weights = chunk_weights(job, sizes, program, lambda kind: layer_weights(sizes, kind))
        ours = chunk_buffers(job, weights, program)
        shards = chunk_shards(job, chunk)
        for expert, padded in ((False, ours.dense_padded), (True, ours.expert_padded)):
            groups = chunk_buckets(job, shards, pp=chunk.pp, vpp=chunk.vpp, expert=expert)
            yield padded, sum(group.elements for group in groups)


@given(jobs())
@settings(max_examples=60, deadline=None)
def test_buffers_hold_what_the_buckets_hold(job):
    for ours, buckets in both_counts(job):
        assert ours == buckets


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_of_the_first_chunk_are_padded_each(overlap):
    job = job_from_settings(
        {
            "num_layers": 4,
            "hidden_size": 96,
            "num_attention_heads": 4,
            "seq_length": 32,
            "vocab_size": 128,
            "world_size": 6,
            "pipeline_model_parallel_size": 2,
            "global_batch_size": 6,
            "bf16": True,
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": overlap,
            "ddp_bucket_size": 10_000,
        }
    )
    assert all(ours == buckets for ours, buckets in both_counts(job))
