"""How many elements a rank's parameter and gradient buffers have, as Megatron's DDP lays them out.

Source: `DistributedDataParallel` and `_ParamAndGradBuffer` of megatron-core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import lcm

from steptally.job import Job
from steptally.predict.count import Count
from steptally.predict.layers import layer_kinds, mtp_layer_kinds
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.weights import Weight, end_weights, layer_weights
from steptally.predict.ranks import expert_data_parallel_size
from steptally.predict.stages import Chunk

START_MULTIPLE = 64  # elements at which a parameter starts with the distributed optimizer
END_MULTIPLE = 128  # elements to which a bucket is padded, beside the data-parallel size
SMALLEST_BUCKET = 40_000_000  # elements; and a million for each data-parallel rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Elements of one chunk on one rank: parameters, and buffers with their padding.

    Experts have buffers of their own, reduced and sharded over their own data-parallel ranks.
    `vectors` are the dense elements outside linear layers: embeddings, norms, biases, LM head.
    """

    dense: Count
    expert: Count
    vectors: Count
    dense_padded: Count
    expert_padded: Count


def chunk_weights(
    job: Job, dimensions: Dimensions, chunk: Chunk
) -> list[tuple[int, Sequence[Weight]]]:
    """(repeats, tensors) of a chunk in model order: embedding, runs of equal layers, MTP, head."""
    kinds = layer_kinds(job)
    ends = end_weights(job, dimensions, chunk)
    first = [weight for weight in ends if weight.name.startswith("embedding")]
    found: list[tuple[int, Sequence[Weight]]] = [(1, first)]
    for kind, run in groupby(kinds[index] for index in chunk.layers):
        found.append((len(list(run)), layer_weights(dimensions, kind)))
    for kind, run in groupby(mtp_layer_kinds(job)[: chunk.mtp_layers]):
        found.append((len(list(run)), layer_weights(dimensions, kind)))
    found.append((1, ends[len(first) :]))
    return found


def chunk_buffers(job: Job, dimensions: Dimensions, chunk: Chunk) -> Buffers:
    """The buffers of one chunk on one rank, exact to the element."""
    weights = chunk_weights(job, dimensions, chunk)
    dense = elements(weights, expert=False)
    expert = elements(weights, expert=True)
    if not job.recipe.use_distributed_optimizer:
        return Buffers(
            dense=dense,
            expert=expert,
            vectors=vector_elements(weights),
            dense_padded=dense,
            expert_padded=expert,
        )
    return Buffers(
        dense=dense,
        expert=expert,
        vectors=vector_elements(weights),
        dense_padded=padded_elements(job, weights, chunk, expert=False),
        expert_padded=padded_elements(job, weights, chunk, expert=True),
    )


def elements(weights: Iterable[tuple[Count, Sequence[Weight]]], *, expert: bool) -> Count:
    """Elements of all dense tensors, or of all experts'."""
    total: Count = 0
    for repeats, tensors in weights:
        for tensor in tensors:
            if tensor.expert == expert:
                total = total + repeats * tensor.copies * tensor.elements
    return total


def vector_elements(weights: Iterable[tuple[Count, Sequence[Weight]]]) -> Count:
    """Dense elements that are not a linear layer's weight, the LM head's among them."""
    total: Count = 0
    for repeats, tensors in weights:
        for tensor in tensors:
            if not tensor.expert and (not tensor.linear or tensor.name == "output_layer"):
                total = total + repeats * tensor.copies * tensor.elements
    return total


def shard_count(job: Job, *, expert: bool) -> int:
    """Ranks over which the distributed optimizer cuts its state: dp · cp, or experts' own."""
    layout = job.layout
    replicas = layout.data_parallel_size * layout.context_parallel_size
    if expert:
        replicas = expert_data_parallel_size(layout)
    return max(1, replicas // layout.num_distributed_optimizer_instances)


def bucket_size(job: Job, chunk: Chunk) -> int | None:
    """Elements after which a bucket of gradients is full; None where there is one bucket.

    Only the first stage's first chunk is cut, and only with `overlap_grad_reduce`: the others'
    reduction is off the critical path.
    """
    if not job.recipe.overlap_grad_reduce or chunk.pp > 0 or chunk.vpp > 0:
        return None
    ranks = shard_count(job, expert=False)
    return job.recipe.ddp_bucket_size or max(SMALLEST_BUCKET, 1_000_000 * ranks)


def padded_elements(
    job: Job, weights: Sequence[tuple[int, Sequence[Weight]]], chunk: Chunk, *, expert: bool
) -> int:
    """Elements of a buffer of the distributed optimizer.

    Each tensor starts at a multiple of 64 elements and each bucket ends where all ranks' shards are
    equal and 256-byte aligned. A word embedding shared with another stage has its own bucket.
    """
    end = lcm(shard_count(job, expert=expert), END_MULTIPLE)
    full = bucket_size(job, chunk)
    shared = _shares_embedding(job, chunk) and not expert
    if full is None and not shared:
        sizes = (
            repeats * tensor.copies * _multiple(tensor.elements, START_MULTIPLE)
            for repeats, tensors in weights
            for tensor in tensors
            if tensor.expert == expert
        )
        return _multiple(sum(sizes), end)
    position = start = 0
    for tensor in _backwards(weights, expert=expert):
        own = shared and tensor.name in ("embedding.word_embeddings", "output_layer")
        position = _multiple(position, START_MULTIPLE)
        if own and position > start:
            position = start = _multiple(position, end)
        position += tensor.elements
        if own or (full is not None and position - start >= full):
            position = start = _multiple(position, end)
    return _multiple(position, end)


def _shares_embedding(job: Job, chunk: Chunk) -> bool:
    """Whether this chunk's word embedding, or tied head, has a copy on another stage."""
    if job.layout.pipeline_model_parallel_size == 1:
        return False
    tied = not job.architecture.untie_embeddings_and_output_weights
    if job.architecture.mtp_num_layers:
        return chunk.embedding_table or (tied and chunk.head)
    return tied and (chunk.embedding or chunk.head)


def _backwards(
    weights: Sequence[tuple[int, Sequence[Weight]]], *, expert: bool
) -> Iterator[Weight]:
    """Every tensor once, last first: roughly the order of the backward pass."""
    for repeats, tensors in reversed(weights):
        for _ in range(repeats):
            for tensor in reversed(tensors):
                if tensor.expert == expert:
                    yield from (tensor for _ in range(tensor.copies))


def _multiple(number: int, step: int) -> int:
    return -(-number // step) * step
