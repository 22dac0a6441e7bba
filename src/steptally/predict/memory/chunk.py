"""The activations of one model chunk: what one pipeline stage (and virtual stage) holds.

A chunk is a run of segments: embedding, layers, multi-token prediction, head. Equal layers in a row
are one segment, so that the cost does not grow with the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from steptally.errors import InputError
from steptally.job import Job
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind, mtp_layer_kinds
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.ends import (
    embedding_operations,
    final_norm_operations,
    output_layer,
    prediction_operations,
    unsaved_logits,
)
from steptally.predict.memory.operation import (
    Footprint,
    Operation,
    footprint,
    held,
    larger,
    weight_gradient,
)
from steptally.predict.memory.program import Program, Run, expanded
from steptally.predict.memory.recompute import checkpointed_layers


class Segment(NamedTuple):
    """`repeats` equal parts of a chunk in a row; `operations` are those of one part.

    `recomputed` says that the part is checkpointed whole: it keeps its input only.
    """

    name: str
    repeats: Count
    operations: Sequence[Operation]
    recomputed: bool = False


LayerOperations = Callable[[LayerKind], Sequence[Operation]]


def chunk_segments(
    job: Job, dimensions: Dimensions, program: Program, layer: LayerOperations
) -> list[Segment]:
    """The parts of a chunk in the order of its forward pass; `layer` gives a kind's operations."""
    segments = []
    if program.embedding:
        segments.append(Segment("embedding", 1, embedding_operations(dimensions)))
    segments += layer_segments(dimensions, program.runs, layer)
    if program.final_norm:
        segments.append(Segment("final norm", 1, final_norm_operations(dimensions)))
    if program.mtp_layers:
        segments.append(prediction_segment(job, dimensions, program.mtp_layers, layer))
    if program.head:
        segments += head_segments(dimensions)
    tied = not job.architecture.untie_embeddings_and_output_weights
    if program.embedding and program.head and tied:
        return [shared_weight(dimensions, segment) for segment in segments]
    return segments


def head_segments(dimensions: Dimensions) -> list[Segment]:
    """The LM head, before it once for each multi-token-prediction depth.

    `GPTModel._postprocess` still names the last depth's logits while it makes the model's own.
    """
    operations = output_layer(dimensions)
    depths = dimensions.architecture.mtp_num_layers
    if not depths:
        return [Segment("head", 1, operations)]
    named = unsaved_logits(dimensions)
    beside = [operation._replace(forward=operation.forward + named) for operation in operations]
    return [Segment("head", depths, operations), Segment("head", 1, beside)]


def shared_weight(dimensions: Dimensions, segment: Segment) -> Segment:
    """A segment of a chunk whose embedding and head share one weight.

    Autograd adds the weight's two gradients when both are there: the head's waits through the whole
    backward pass (Transformer Engine's dummy is lasting anyway), and their sum is new.
    """
    hidden = dimensions.architecture.hidden_size
    waits = weight_gradient(dimensions, hidden, dimensions.vocabulary)
    if segment.name == "head":
        return segment
    operations = held(segment.operations, waits)
    if segment.name == "embedding":
        both = waits + 2 * dimensions.vocabulary * hidden * dimensions.element
        operations = [
            operation._replace(backward=larger(operation.backward, both))
            for operation in operations
        ]
    return segment._replace(operations=operations)


def layer_segments(
    dimensions: Dimensions, runs: Sequence[Run], layer: LayerOperations
) -> list[Segment]:
    """Decoder layers, those that full recomputation checkpoints apart from the others."""
    layout = dimensions.layout
    if layout.recompute_granularity != "full":
        return [Segment("layer", run.layers, layer(run.kind)) for run in runs]
    kinds, count = expanded(runs), _recompute_num_layers(dimensions)
    if layout.recompute_method == "block":
        rest = groupby(kinds[count:])
        return [
            *_units(kinds[:count], 1, layer),
            *(Segment("layer", len(list(run)), layer(kind)) for kind, run in rest),
        ]
    return list(_units(kinds, count, layer))


def prediction_segment(
    job: Job, dimensions: Dimensions, depths: int, layer: LayerOperations
) -> Segment:
    """Multi-token-prediction depths; uniform full recomputation checkpoints each."""
    layout = job.layout
    operations = prediction_operations(dimensions, layer(mtp_layer_kinds(job)[0]))
    again = layout.recompute_granularity == "full" and layout.recompute_method == "uniform"
    return Segment("mtp", depths, operations, again)


def segment_footprint(dimensions: Dimensions, segment: Segment) -> Footprint:
    """What one part of a segment keeps and needs."""
    if segment.recomputed:
        return checkpointed_layers(dimensions, segment.operations)
    return footprint(segment.operations)


def chunk_footprint(dimensions: Dimensions, segments: Sequence[Segment]) -> Footprint:
    """What a whole chunk keeps of one micro-batch, and its peaks above what was there before."""
    saved: Count = 0
    forward_peak: Count = 0
    backward_peak: Count = 0
    for index, segment in enumerate(segments):
        part = segment_footprint(dimensions, segment)
        before = saved + (segment.repeats - 1) * part.saved  # of the last of equal parts
        beside = received_gradient(dimensions, segments, index)
        forward_peak = larger(forward_peak, before + part.forward_peak)
        backward_peak = larger(backward_peak, before + beside + part.backward_peak)
        saved = saved + segment.repeats * part.saved
    return Footprint(saved=saved, forward_peak=forward_peak, backward_peak=backward_peak)


def received_gradient(dimensions: Dimensions, segments: Sequence[Segment], index: int) -> Count:
    """The gradient that a chunk's backward received, which the schedule holds to its end.

    In the last segment it is the residual connection's own; before it, another tensor. The chunk of
    the head receives none.
    """
    if index == len(segments) - 1 or any(segment.name == "head" for segment in segments):
        return 0
    return dimensions.hidden_bytes


def _units(kinds: Sequence[LayerKind], size: int, layer: LayerOperations) -> Iterator[Segment]:
    """Checkpointed groups of `size` layers; the last may be smaller."""
    groups = [tuple(kinds[start : start + size]) for start in range(0, len(kinds), size)]
    for group, run in groupby(groups):
        operations = [operation for kind in group for operation in layer(kind)]
        yield Segment("layer", len(list(run)), operations, recomputed=True)


def _recompute_num_layers(dimensions: Dimensions) -> int:
    layers = dimensions.layout.recompute_num_layers
    if layers is None:
        raise InputError(
            "recompute_granularity full needs recompute_num_layers: with uniform the layers of "
            "each checkpointed group, with block the layers of each stage that run again. State it."
        )
    return layers
