"""The gradient buckets of Megatron's DDP: what one data-parallel collective moves.

Sources, megatron-core 0.16.1: `DistributedDataParallel.__init__` and `_ParamAndGradBuffer`
(distributed/); Megatron-LM's get_model for the default bucket size and for `disable_bucketing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from steptally.job.job import Job
from steptally.predict.precision import size_bytes
from steptally.predict.ranks import expert_data_parallel_size
from steptally.predict.shard import Shard

PARAMETER_ALIGNMENT = 64  # elements: 128 bytes of two-byte parameters
BUCKET_ALIGNMENT = 128  # elements: 256 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Elements of one bucket, padding included, of parameters that share one dtype."""

    elements: int
    parameter_dtype: str

    def parameter_bytes(self) -> int:
        """Bytes of the bucket's parameters, as the all-gather after the update moves them."""
        return size_bytes(self.elements, self.parameter_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketGroup:
    """Buckets whose collectives are issued as one."""

    buckets: tuple[Bucket, ...]

    @property
    def elements(self) -> int:
        """Elements of all its buckets."""
        return sum(bucket.elements for bucket in self.buckets)

    def parameter_bytes(self) -> int:
        """Bytes of all its buckets' parameters."""
        return sum(bucket.parameter_bytes() for bucket in self.buckets)


def bucket_size(job: Job) -> int | None:
    """Parameters in a bucket before it is closed; None: all in one.

    `ddp_bucket_size`, else max(40 M, 1 M · dp · cp); without `overlap_grad_reduce` there is nothing
    to split for.
    """
    if not job.recipe.overlap_grad_reduce:
        return None
    if job.recipe.ddp_bucket_size is not None:
        return job.recipe.ddp_bucket_size
    layout = job.layout
    return max(40_000_000, 1_000_000 * layout.data_parallel_size * layout.context_parallel_size)


def chunk_buckets(
    job: Job, shards: Sequence[Shard], *, pp: int, vpp: int, expert: bool
) -> list[BucketGroup]:
    """The bucket groups of one chunk's dense (or expert) parameters, last parameter first.

    Only the first chunk of the first stage is split by size: other stages' reductions are off the
    critical path.
    """
    chosen = [shard for shard in shards if shard.expert == expert]
    limit = bucket_size(job) if pp == 0 and vpp == 0 else None
    replicas = data_parallel_shards(job, expert=expert)
    quantized = [shard for shard in chosen if shard.quantized]
    plain = [shard for shard in chosen if not shard.quantized]
    eight_bit = _buffer(job, quantized, limit, replicas, _quantized_dtype(job))
    others = _buffer(job, plain, limit, replicas, job.recipe.params_dtype)
    return _grouped(eight_bit, others, single=vpp > 0)


def data_parallel_shards(job: Job, *, expert: bool) -> int:
    """Ranks over which one optimizer instance shards: dp · cp (experts: edp) / instances."""
    layout = job.layout
    replicas = layout.data_parallel_size * layout.context_parallel_size
    if expert:
        replicas = expert_data_parallel_size(layout)
    return replicas // layout.num_distributed_optimizer_instances


def _quantized_dtype(job: Job) -> str:
    """What a quantized weight is gathered in: MXFP8 gathers bf16 and quantizes afterwards."""
    return "bf16" if job.recipe.fp8_recipe == "mxfp8" else "fp8"


def _buffer(
    job: Job, shards: Sequence[Shard], limit: int | None, replicas: int, dtype: str
) -> list[Bucket]:
    """Cut one buffer into buckets, in the order of backward.

    With the distributed optimizer every parameter starts at a multiple of 64 elements and every
    bucket ends at a multiple of lcm(replicas, 128). A copy of the shared embedding stands alone.
    """
    sharded = job.recipe.use_distributed_optimizer
    ends: list[int] = []
    start = position = 0
    for shard in reversed(shards):
        alone = shard.shared_embedding and sharded
        if sharded:
            position = _up_to_multiple(position, PARAMETER_ALIGNMENT)
        if alone and position > start:
            start = position = _close(ends, position, replicas, sharded)
        position += shard.elements
        if alone or (limit is not None and position - start >= limit):
            start = position = _close(ends, position, replicas, sharded)
    if position > start:
        _close(ends, position, replicas, sharded)
    return [
        Bucket(elements=end - begin, parameter_dtype=dtype)
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def _close(ends: list[int], position: int, replicas: int, sharded: bool) -> int:
    """Note where a bucket ends, padded, and return that."""
    end = _up_to_multiple(position, lcm(replicas, BUCKET_ALIGNMENT)) if sharded else position
    ends.append(end)
    return end


def _up_to_multiple(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _grouped(quantized: list[Bucket], plain: list[Bucket], *, single: bool) -> list[BucketGroup]:
    """Which buckets go together: all of a later chunk; plain ones with the last quantized one."""
    if single:
        together = (*quantized, *plain)
        return [BucketGroup(buckets=together)] if together else []
    if not quantized:
        return [BucketGroup(buckets=(bucket,)) for bucket in plain]
    first = [BucketGroup(buckets=(bucket,)) for bucket in quantized[:-1]]
    return [*first, BucketGroup(buckets=(quantized[-1], *plain))]
