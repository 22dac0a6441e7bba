"""How many elements a rank's parameter and gradient buffers have, as Megatron's DDP lays them out.

Source: `DistributedDataParallel` and `_ParamAndGradBuffer` of megatron-core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import lcm
from typing import NamedTuple

from steptally.job import Job
from steptally.predict.buckets import (
    BUCKET_ALIGNMENT,
    PARAMETER_ALIGNMENT,
    bucket_size,
    data_parallel_shards,
)
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind, mtp_layer_kinds
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.program import Program
from steptally.predict.memory.weights import (
    HEAD,
    WORD_EMBEDDINGS,
    Weight,
    embedding_weights,
    final_norm_weights,
    head_weight,
    prediction_weights,
)


class Buffers(NamedTuple):
    """Elements of one chunk on one rank: parameters, and buffers with their padding.

    Experts have buffers of their own, reduced and sharded over their own data-parallel ranks.
    `vectors` are the dense elements outside linear layers: embeddings, norms, biases, LM head.
    `dense_shards` and `expert_shards` are the ranks over which the distributed optimizer cuts each.
    """

    dense: Count
    expert: Count
    vectors: Count
    dense_padded: Count
    expert_padded: Count
    dense_shards: Count
    expert_shards: Count


Runs = Sequence[tuple[Count, Sequence[Weight]]]
Counted = Sequence[tuple[Count, Weight]]  # (how many there are, all layers and copies; one)
LayerWeights = Callable[[LayerKind], Sequence[Weight]]


def chunk_weights(job: Job, dimensions: Dimensions, program: Program, layer: LayerWeights) -> Runs:
    """(repeats, tensors) of a chunk in Megatron-Core's order; `layer` gives a kind's tensors.

    A tied head that is not on the embedding's chunk has a table of its own.
    """
    found: list[tuple[Count, Sequence[Weight]]] = []
    if program.embedding_table:
        found.append((1, embedding_weights(job, dimensions)))
    found += [(run.layers, layer(run.kind)) for run in program.runs]
    if program.final_norm:
        found.append((1, final_norm_weights(job.architecture)))
    for kind in mtp_layer_kinds(job)[: program.mtp_layers]:
        found.append((1, prediction_weights(dimensions, layer(kind))))
    tied = not job.architecture.untie_embeddings_and_output_weights
    if program.head and not (tied and program.embedding):
        found.append((1, [head_weight(dimensions)]))
    return found


def chunk_buffers(job: Job, weights: Runs, program: Program) -> Buffers:
    """The buffers of one chunk on one rank, exact to the element."""
    tensors = counted(weights)
    dense, expert = experts_apart(job, tensors)
    padded = (elements(dense), elements(expert))
    if job.recipe.use_distributed_optimizer:
        padded = (
            padded_elements(job, program, weights, dense, expert=False),
            padded_elements(job, program, weights, expert, expert=True),
        )
    return Buffers(
        dense=elements(dense),
        expert=elements(expert),
        vectors=elements(outside_linear_layers(tensors)),
        dense_padded=padded[0],
        expert_padded=padded[1],
        dense_shards=shard_count(job, expert=False),
        expert_shards=shard_count(job, expert=True),
    )


def counted(weights: Runs) -> Counted:
    """Each distinct tensor of a chunk, with how many it stands for."""
    return [(repeats * tensor.copies, tensor) for repeats, tensors in weights for tensor in tensors]


def experts_apart(job: Job, tensors: Counted) -> tuple[Counted, Counted]:
    """The tensors of the dense buffers and of the experts' own, which expert parallelism makes."""
    if job.layout.expert_model_parallel_size == 1:
        return tensors, ()
    return (
        [(count, tensor) for count, tensor in tensors if not tensor.expert],
        [(count, tensor) for count, tensor in tensors if tensor.expert],
    )


def outside_linear_layers(tensors: Counted) -> Counted:
    """Embeddings, norms, biases and the LM head, but no expert's."""
    return [
        (count, tensor)
        for count, tensor in tensors
        if not tensor.expert and (not tensor.linear or tensor.name == HEAD)
    ]


def elements(tensors: Counted) -> Count:
    """Elements of all these tensors."""
    return sum(count * tensor.rows * tensor.columns for count, tensor in tensors)


def shard_count(job: Job, *, expert: bool) -> int:
    """Ranks over which the distributed optimizer cuts its state: dp · cp, or experts' own."""
    return max(1, data_parallel_shards(job, expert=expert))


def padded_elements(
    job: Job, program: Program, weights: Runs, tensors: Counted, *, expert: bool
) -> int:
    """Elements of the distributed optimizer's buffer of `tensors`, part of a chunk's `weights`.

    Each tensor starts at a multiple of 64 elements and each bucket ends where all ranks' shards are
    equal and 256-byte aligned. Only the first stage's first chunk is cut into buckets; a word
    embedding shared with another stage has its own bucket.
    """
    end = lcm(shard_count(job, expert=expert), BUCKET_ALIGNMENT)
    alone = _shared_names(job, program) if not expert else ()
    if program.first and bucket_size(job) is not None:
        return _walked(job, weights, alone, end, expert=expert)
    own = rest = 0
    for count, tensor in tensors:
        if tensor.name in alone:
            own += count * _multiple(tensor.elements, end)
        else:
            rest += count * _multiple(tensor.elements, PARAMETER_ALIGNMENT)
    return own + _multiple(rest, end)


def _walked(job: Job, weights: Runs, alone: Sequence[str], end: int, *, expert: bool) -> int:
    """Elements of a buffer that is cut into buckets, found by walking from the last tensor."""
    full = bucket_size(job) or 0
    apart = job.layout.expert_model_parallel_size > 1
    position = start = 0
    for tensor in _backwards(weights, grouped=job.recipe.moe_grouped_gemm):
        if (apart and tensor.expert) != expert:
            continue
        own = tensor.name in alone
        position = _multiple(position, PARAMETER_ALIGNMENT)
        if own and position > start:
            position = start = _multiple(position, end)
        position += tensor.elements
        if own or position - start >= full:
            position = start = _multiple(position, end)
    return _multiple(position, end)


def _shared_names(job: Job, program: Program) -> tuple[str, ...]:
    """The tensors of this chunk that have a copy on another stage: embedding, or tied head."""
    if job.layout.pipeline_model_parallel_size == 1:
        return ()
    tied = not job.architecture.untie_embeddings_and_output_weights
    copied = tied or bool(job.architecture.mtp_num_layers)
    if program.embedding:
        return (WORD_EMBEDDINGS,) if copied and not program.head else ()
    if program.mtp_layers:
        return (WORD_EMBEDDINGS,)
    return (HEAD,) if tied and program.head else ()


def _backwards(weights: Runs, *, grouped: bool) -> Iterator[Weight]:
    """Every tensor once, last first: roughly the order of the backward pass.

    Grouped experts are registered tensor by tensor, others expert by expert.
    """
    for repeats, tensors in reversed(weights):
        backwards = tensors[::-1]
        if not grouped:
            backwards = [tensor for copies in _by_copies(backwards) for tensor in copies]
        for _ in range(repeats):
            for tensor in backwards:
                for _ in range(tensor.copies if grouped else 1):
                    yield tensor


def _by_copies(tensors: Sequence[Weight]) -> Iterator[Sequence[Weight]]:
    for copies, run in groupby(tensors, lambda tensor: tensor.copies):
        yield tuple(run) * copies


def _multiple(number: int, step: int) -> int:
    return -(-number // step) * step
