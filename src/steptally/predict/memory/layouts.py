"""Many layouts of one job as arrays, and their stages' parts: what `memory.search` adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steptally.job import Job
from steptally.predict.layers import LayerKind, layer_kinds
from steptally.predict.memory.buffers import counted, elements, outside_linear_layers
from steptally.predict.memory.dimensions import Dimensions, layout_dimensions
from steptally.predict.memory.ends import (
    embedding_operations,
    final_norm_operations,
    output_layer,
)
from steptally.predict.memory.layer import layer_operations
from steptally.predict.memory.operation import Footprint, Operation, footprint
from steptally.predict.memory.weights import (
    Weight,
    embedding_weights,
    final_norm_weights,
    head_weight,
    layer_weights,
)

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many layouts of one job, an entry of every array each.

    `virtual_size` is 1 where there is no interleaving; `num_microbatches` is of one pipeline.
    """

    tensor_model_parallel_size: Array
    pipeline_model_parallel_size: Array
    virtual_size: Array
    context_parallel_size: Array
    expert_model_parallel_size: Array
    expert_tensor_parallel_size: Array
    data_parallel_size: Array
    micro_batch_size: Array
    num_microbatches: Array


class Stage(NamedTuple):
    """One stage of every layout: its number, whether it has the head, its layers by kind."""

    number: Array
    has_head: bool
    layers: Mapping[LayerKind, Array]
    embedding: Array


class Tensors(NamedTuple):
    """Parameter tensors, and their elements: of experts, of all others, of those not matrices."""

    tensors: list[Weight]
    experts: Any
    others: Any
    vectors: Any


class Parts(NamedTuple):
    """What does not depend on the stage: sizes, activations and tensors of each part of the model.

    `layers` and `weights` are of one layer of each kind.
    """

    sizes: Dimensions
    embedding: Footprint
    layers: Mapping[LayerKind, list[Operation]]
    head: Footprint
    embedding_weights: Tensors
    weights: Mapping[LayerKind, Tensors]
    final_norm_weights: Tensors
    head_weight: Tensors


def model_parts(job: Job, layouts: Layouts) -> Parts:
    """Every part of the model in the sizes of each layout."""
    sizes = layouts_dimensions(job, layouts)
    kinds = dict.fromkeys(layer_kinds(job))
    return Parts(
        sizes=sizes,
        embedding=footprint(embedding_operations(sizes)),
        layers={kind: layer_operations(sizes, kind) for kind in kinds},
        head=footprint([*final_norm_operations(sizes), *output_layer(sizes)]),
        embedding_weights=_tensors(embedding_weights(job, sizes)),
        weights={kind: _tensors(layer_weights(sizes, kind)) for kind in kinds},
        final_norm_weights=_tensors(final_norm_weights(job.architecture)),
        head_weight=_tensors([head_weight(sizes)]),
    )


def _tensors(tensors: list[Weight]) -> Tensors:
    every = counted([(1, tensors)])
    experts = elements([(count, tensor) for count, tensor in every if tensor.expert])
    return Tensors(
        tensors=tensors,
        experts=experts,
        others=elements(every) - experts,
        vectors=elements(outside_linear_layers(every)),
    )


def layouts_dimensions(job: Job, layouts: Layouts) -> Dimensions:
    """One rank's sizes in each layout, with the vocabulary padded for it."""
    tp = layouts.tensor_model_parallel_size
    multiple = job.architecture.make_vocab_size_divisible_by * tp
    padded = np.ceil(job.architecture.vocab_size / multiple) * multiple
    if job.architecture.padded_vocab_size is not None:
        padded = np.full_like(tp, job.architecture.padded_vocab_size)
    return layout_dimensions(
        job,
        tp=tp,
        cp=layouts.context_parallel_size,
        ep=layouts.expert_model_parallel_size,
        etp=layouts.expert_tensor_parallel_size,
        micro_batch=layouts.micro_batch_size,
        vocabulary=padded / tp,
        groups=np.maximum(1.0, job.architecture.num_query_groups // tp),
    )


def candidate_stages(job: Job, layouts: Layouts) -> list[Stage]:
    """The stages that can be worst in some layout."""
    kinds = layer_kinds(job)
    stages = layouts.pipeline_model_parallel_size
    last = stages - 1
    numbers = [(np.zeros_like(stages), False), (last, True)]
    if len(set(kinds)) > 1:
        uniform_from = next(i for i in range(len(kinds)) if len(set(kinds[i:])) == 1)
        per_chunk = len(kinds) // (stages * layouts.virtual_size)
        settled = np.minimum(np.ceil(uniform_from / per_chunk), last)
        numbers += [(np.minimum(1.0, last), False), (settled, False)]
    return [
        Stage(number, has_head, _layers(kinds, layouts, number), number == 0)
        for number, has_head in numbers
    ]


def _layers(
    kinds: tuple[LayerKind, ...], layouts: Layouts, number: Array
) -> Mapping[LayerKind, Array]:
    """Layers of each kind that a stage holds, over all its chunks."""
    stages, chunks = layouts.pipeline_model_parallel_size, layouts.virtual_size
    per_chunk = len(kinds) // (stages * chunks)
    distinct = dict.fromkeys(kinds)
    if len(distinct) == 1:
        return {kinds[0]: per_chunk * chunks}
    found = {}
    for kind in distinct:
        before = np.concatenate(([0.0], np.cumsum([one == kind for one in kinds])))
        count = np.zeros_like(number)
        for chunk in range(int(chunks.max())):
            first = ((chunk * stages + number) * per_chunk).astype(np.int64)
            inside = chunk < chunks
            start = np.where(inside, first, 0)
            end = np.where(inside, first + per_chunk.astype(np.int64), 0)
            count = count + before[end] - before[start]
        found[kind] = count
    return found
