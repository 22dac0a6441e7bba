"""What activation recomputation runs again in backward.

Source: `TransformerBlock._checkpointed_forward` and the `recompute_modules` of
`TransformerConfig` in megatron-core 0.16.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from steptally.errors import InputError
from steptally.job import Job
from steptally.predict.layers import LayerKind, count_layer_kinds, layer_kinds
from steptally.predict.stages import model_chunks


def recomputed_modules(job: Job) -> frozenset[str]:
    """The modules that every layer runs again: `recompute_modules` of selective recomputation."""
    if job.layout.recompute_granularity != "selective":
        return frozenset()
    return frozenset(job.layout.recompute_modules)


def recomputed_layers(job: Job) -> Mapping[LayerKind, int]:
    """How many decoder layers of each kind run again whole: full recomputation.

    `uniform` checkpoints every layer, in groups of `recompute_num_layers`; `block` the first
    `recompute_num_layers` of each stage, or of each chunk of an interleaved stage.
    """
    layout = job.layout
    if layout.recompute_granularity != "full":
        return {}
    if layout.recompute_method == "uniform":
        return count_layer_kinds(job.architecture)
    if layout.recompute_num_layers is None:
        raise InputError(
            "recompute_method block needs recompute_num_layers, the number of layers that each "
            "stage runs again: state it."
        )
    kinds = layer_kinds(job)
    return Counter(
        kinds[index]
        for chunk in model_chunks(job)
        for index in chunk.layers[: layout.recompute_num_layers]
    )


def recomputed_mtp_layers(job: Job) -> int:
    """How many MTP modules run again: all with `uniform`, none with `block` (not supported)."""
    layout = job.layout
    if layout.recompute_granularity == "full" and layout.recompute_method == "uniform":
        return job.architecture.mtp_num_layers or 0
    return 0
