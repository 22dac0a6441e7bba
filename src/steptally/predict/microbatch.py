"""How many tokens one rank holds of one micro-batch, where.

Context parallelism cuts the sequence for the whole model; sequence parallelism cuts it further
between the tensor-parallel regions.
"""

from __future__ import annotations

from steptally.job.job import Job


def gathered_tokens(job: Job) -> int:
    """Rows of an activation inside a tensor-parallel region: s / cp · micro-batch."""
    layout = job.layout
    return layout.seq_length // layout.context_parallel_size * layout.micro_batch_size


def shard_tokens(job: Job) -> int:
    """Rows between tensor-parallel regions: those of `gathered_tokens`, / tp with SP."""
    return gathered_tokens(job) // sequence_shards(job)


def sequence_shards(job: Job) -> int:
    """tp with sequence parallelism, else 1."""
    return job.layout.tensor_model_parallel_size if job.layout.sequence_parallel else 1
