"""One parameter tensor as one rank holds it, and the small parts that every module is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from steptally.job.job import Job
from steptally.predict.precision import uses_transformer_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A parameter tensor of one rank: Megatron's name, and its number of elements.

    `expert`: reduced over the expert data parallel group (only where ep > 1: Megatron's
    `allreduce` attribute). `sequence_parallel`: equal on all tensor parallel ranks but fed with a
    part of the sequence on each, so that its gradients are summed over them. `shared_embedding`: a
    copy of the word embedding that other stages hold too. `quantized`: what `fp8_param_gather`
    keeps in eight bits.
    """

    name: str
    elements: int
    expert: bool = False
    sequence_parallel: bool = False
    shared_embedding: bool = False
    quantized: bool = False


def prefixed(prefix: str, shards: Iterable[Shard]) -> list[Shard]:
    """The same shards inside a module called `prefix`."""
    return [replace(shard, name=f"{prefix}.{shard.name}") for shard in shards]


def norm(job: Job, name: str, size: int) -> list[Shard]:
    """A normalisation's weight, and bias for LayerNorm; replicated over tensor parallel ranks."""
    with_sequence = job.layout.sequence_parallel
    parts = {"LayerNorm": ("weight", "bias"), "RMSNorm": ("weight",), "L2Norm": ()}
    return [
        Shard(name=f"{name}.{part}", elements=size, sequence_parallel=with_sequence)
        for part in parts[job.architecture.normalization]
    ]


def fused_norm(job: Job, size: int) -> list[Shard]:
    """The norm that Transformer Engine's LayerNormLinear holds before its own weight."""
    return [
        replace(shard, name=shard.name.replace("norm.", "layer_norm_"))
        for shard in norm(job, "norm", size)
    ]


def column(
    job: Job, name: str, inputs: int, outputs: int, *, bias: bool, norm_size: int = 0
) -> list[Shard]:
    """A column-parallel linear layer; `norm_size` is that of a norm fused into it (0: none)."""
    shards = fused_norm(job, norm_size) if norm_size else []
    shards.append(weight(job, inputs * outputs))
    if bias:
        shards.append(Shard(name="bias", elements=outputs))
    return prefixed(name, shards)


def row(job: Job, name: str, inputs: int, outputs: int, *, bias: bool) -> list[Shard]:
    """A row-parallel linear layer; its bias is whole on every rank."""
    shards = [weight(job, inputs * outputs)]
    if bias:
        with_sequence = job.layout.sequence_parallel
        shards.append(Shard(name="bias", elements=outputs, sequence_parallel=with_sequence))
    return prefixed(name, shards)


def duplicated(job: Job, name: str, inputs: int, outputs: int, *, bias: bool) -> list[Shard]:
    """A linear layer of Transformer Engine that is whole on every tensor parallel rank."""
    shards = [weight(job, inputs * outputs)]
    if bias:
        shards.append(Shard(name="bias", elements=outputs))
    with_sequence = job.layout.sequence_parallel
    return prefixed(name, [replace(shard, sequence_parallel=with_sequence) for shard in shards])


def weight(job: Job, elements: int, name: str = "weight") -> Shard:
    """A linear layer's weight: eight-bit with fp8_param_gather and Transformer Engine."""
    quantized = job.recipe.fp8_param_gather and uses_transformer_engine(job)
    return Shard(name=name, elements=elements, quantized=quantized)
