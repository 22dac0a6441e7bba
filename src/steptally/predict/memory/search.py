"""Worst-stage memory of many layouts at once: the formulas of the account over float64 arrays.

What a search varies is an array with one entry a layout; everything else (model, sequence, recipe,
recomputation, sequence parallelism) is the job's own, one for all. The stages looked at are those
that can be worst: the first, the second, the first of nothing but the model's last kind of layer,
and the last. Left out is the padding of buffers and vocabulary per layout (below a thousandth).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from steptally.errors import InputError
from steptally.job import Device, Job
from steptally.predict.count import Count
from steptally.predict.memory.buffers import Buffers
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.lasting import (
    cublas_workspaces,
    fp8_weight_copies,
    global_buffer,
    quantized_elements,
    rotary_embedding,
)
from steptally.predict.memory.layouts import (
    Array,
    Layouts,
    Parts,
    Stage,
    Tensors,
    candidate_stages,
    model_parts,
)
from steptally.predict.memory.operation import (
    Footprint,
    Operation,
    footprint,
    weight_gradient,
)
from steptally.predict.memory.recompute import checkpointed_layers
from steptally.predict.memory.resident import gradient_line, optimizer_lines, parameter_line


def worst_stage_bytes(job: Job, layouts: Layouts, device: Device | None = None) -> Array:
    """The peak of allocated memory of the worst stage of each layout, in a later step.

    Give a job with tensor parallelism where layouts have it: without, Megatron turns sequence
    parallelism off, and that is one for all. Raises `InputError` for a job whose stages are
    unequal, or that has multi-token prediction: those are for `memory.stage.all_stages`.
    """
    if _is_uneven(job):
        raise InputError(
            f"job {job.name} has stages of its own making (unequal layers, or multi-token "
            f"prediction), which a search over layouts does not vary: drop them from the job."
        )
    parts = model_parts(job, layouts)
    stages = [
        _stage_bytes(job, layouts, parts, stage, device) for stage in candidate_stages(job, layouts)
    ]
    worst = stages[0]
    for stage in stages[1:]:
        worst = np.maximum(worst, stage)
    return worst


def _is_uneven(job: Job) -> bool:
    layout = job.layout
    return bool(
        layout.pipeline_model_parallel_layout
        or layout.decoder_first_pipeline_num_layers
        or layout.decoder_last_pipeline_num_layers
        or layout.account_for_embedding_in_pipeline_split
        or layout.account_for_loss_in_pipeline_split
        or job.architecture.mtp_num_layers
    )


def _stage_bytes(
    job: Job, layouts: Layouts, parts: Parts, stage: Stage, device: Device | None
) -> Array:
    activations = _activation_peak(job, layouts, parts, stage)
    return _lasting_bytes(job, layouts, parts, stage, device) + activations


def _activation_peak(job: Job, layouts: Layouts, parts: Parts, stage: Stage) -> Array:
    """In flight but one of every chunk, and the peak of the one that runs."""
    chunks, stages = layouts.virtual_size, layouts.pipeline_model_parallel_size
    ahead = stages - stage.number - 1
    warm = np.where(chunks > 1, 2 * ahead + (chunks - 1) * stages, ahead) * (stages > 1)
    in_flight = np.minimum(layouts.num_microbatches * chunks, warm + 1)
    chunk = _chunk_footprint(job, layouts, parts, stage)
    peak = np.maximum(chunk.forward_peak, chunk.backward_peak)
    return np.asarray((in_flight - 1) * chunk.saved + peak)


def _chunk_footprint(job: Job, layouts: Layouts, parts: Parts, stage: Stage) -> Footprint:
    """A mean chunk of the stage: its embedding, its layers, its head.

    Of the last stage's chunks in flight, only the one that runs has the head.
    """
    sizes, first, head = parts.sizes, parts.embedding, parts.head
    tied = not job.architecture.untie_embeddings_and_output_weights
    alone = (layouts.pipeline_model_parallel_size == 1) * tied
    hidden = job.architecture.hidden_size
    waits = alone * weight_gradient(sizes, hidden, sizes.vocabulary)
    both = alone * (waits + 2 * sizes.vocabulary * hidden * sizes.element)
    saved = stage.embedding * first.saved
    forward = stage.embedding * first.forward_peak
    received = first.backward_peak + waits + sizes.hidden_bytes
    backward = stage.embedding * np.maximum(received, both)
    counts = {kind: count / layouts.virtual_size for kind, count in stage.layers.items()}
    layers = {
        kind: _layer_footprint(job, sizes, parts.layers[kind], count)
        for kind, count in counts.items()
    }
    kept = saved + sum(part.saved for part in layers.values())
    for kind, part in layers.items():
        has, others = counts[kind] > 0, kept - part.saved
        forward = np.maximum(forward, has * (others + part.forward_peak))
        backward = np.maximum(backward, has * (others + waits + part.backward_peak))
    if stage.has_head:
        forward = np.maximum(forward, kept + head.forward_peak)
        backward = np.maximum(backward, kept + head.backward_peak)
    return Footprint(saved=kept, forward_peak=forward, backward_peak=backward)


def _layer_footprint(
    job: Job, sizes: Dimensions, operations: list[Operation], count: Array
) -> Footprint:
    """`count` equal layers in a row, some or all of them recomputed."""
    layout = job.layout
    if layout.recompute_granularity != "full":
        return _repeated(footprint(operations), count)
    layers = layout.recompute_num_layers or 1
    if layout.recompute_method == "uniform":
        unit = checkpointed_layers(sizes, operations * layers)
        return _repeated(unit, np.ceil(count / layers))
    again = np.minimum(count, layers)
    rest = count - again
    stored = _repeated(checkpointed_layers(sizes, operations), again)
    others = _repeated(footprint(operations), rest)
    return Footprint(
        saved=stored.saved + others.saved,
        forward_peak=np.where(rest > 0, stored.saved + others.forward_peak, stored.forward_peak),
        backward_peak=np.where(rest > 0, stored.saved + others.backward_peak, stored.backward_peak),
    )


def _repeated(part: Footprint, count: Array) -> Footprint:
    before = (count - 1) * part.saved
    return Footprint(
        saved=count * part.saved,
        forward_peak=before + part.forward_peak,
        backward_peak=before + part.backward_peak,
    )


def _lasting_bytes(
    job: Job, layouts: Layouts, parts: Parts, stage: Stage, device: Device | None
) -> Array:
    sizes = parts.sizes
    runs = _runs(job, parts, stage, layouts.pipeline_model_parallel_size)
    buffers = _buffers(layouts, runs)
    layers = sum(stage.layers.values())
    tensors = [(count, run.tensors) for count, run in runs]
    total = parameter_line(job, buffers, quantized_elements(job, tensors)).bytes
    total = total + gradient_line(job, buffers).bytes
    total = total + sum(line.bytes for line in optimizer_lines(job, buffers))
    total = total + _dummy_gradients(sizes, runs)
    total = total + fp8_weight_copies(job, tensors, device) + rotary_embedding(sizes, layers)
    total = total + global_buffer(sizes, stage.has_head) + cublas_workspaces(job, device)
    pipelined = layouts.pipeline_model_parallel_size > 1
    held = np.where(layouts.virtual_size > 1, 3, 1 - stage.embedding)
    return np.asarray(total + pipelined * held * sizes.hidden_bytes)


def _runs(job: Job, parts: Parts, stage: Stage, stages: Array) -> list[tuple[Any, Tensors]]:
    """(how often, tensors) of the stage; zero where a layout has none there."""
    runs: list[tuple[Any, Tensors]] = [(stage.embedding * 1.0, parts.embedding_weights)]
    runs += [(count, parts.weights[kind]) for kind, count in stage.layers.items()]
    if stage.has_head:
        tied = not job.architecture.untie_embeddings_and_output_weights
        runs.append((1.0, parts.final_norm_weights))
        runs.append((np.where(tied & (stages == 1), 0.0, 1.0), parts.head_weight))
    return runs


def _buffers(layouts: Layouts, runs: list[tuple[Any, Tensors]]) -> Buffers:
    apart = layouts.expert_model_parallel_size > 1
    experts = sum(count * run.experts for count, run in runs)
    others = sum(count * run.others for count, run in runs)
    dense, expert = others + (1 - apart) * experts, apart * experts
    replicas = layouts.data_parallel_size * layouts.context_parallel_size
    model = layouts.expert_tensor_parallel_size * layouts.expert_model_parallel_size
    return Buffers(
        dense=dense,
        expert=expert,
        vectors=sum(count * run.vectors for count, run in runs),
        dense_padded=dense,
        expert_padded=expert,
        dense_shards=replicas,
        expert_shards=replicas * layouts.tensor_model_parallel_size / model,
    )


def _dummy_gradients(sizes: Dimensions, runs: list[tuple[Any, Tensors]]) -> Count:
    """One for each name of a linear weight that the stage has (shapes rarely agree by chance)."""
    if not (sizes.transformer_engine and sizes.recipe.gradient_accumulation_fusion):
        return 0
    found: dict[str, tuple[Any, Any]] = {}
    for count, run in runs:
        has = np.asarray(count) > 0
        for tensor in run.tensors:
            if tensor.linear:
                _, present = found.get(tensor.name, (0, False))
                found[tensor.name] = (tensor.elements, present | has)
    return sum(size * present * sizes.element for size, present in found.values())
