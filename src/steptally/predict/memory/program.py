"""What each model chunk runs, apart from where it stands: equal programs have equal memory.

A job of 64 stages has three or four distinct programs: the first stage, the last, and those
between. Each is accounted for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import NamedTuple

from steptally.job import Architecture, Job
from steptally.predict.layers import LayerKind, architecture_layers
from steptally.predict.stages import Chunk, model_chunks


class Run(NamedTuple):
    """`layers` equal decoder layers in a row."""

    kind: LayerKind
    layers: int


class Program(NamedTuple):
    """One chunk: runs of layers between what stands at the model's ends.

    `first` says that it is the first stage's first chunk, the only one whose gradients are cut into
    buckets; `final_norm` that the norm after the last layer is here.
    """

    runs: tuple[Run, ...]
    embedding: bool
    mtp_layers: int
    head: bool
    final_norm: bool
    first: bool

    @property
    def layers(self) -> int:
        """Decoder layers of the chunk."""
        return sum(run.layers for run in self.runs)

    @property
    def embedding_table(self) -> bool:
        """Whether the chunk holds the word embedding's weight: for its input or for MTP."""
        return self.embedding or self.mtp_layers > 0


def stage_programs(job: Job) -> list[tuple[Program, ...]]:
    """The programs of every pipeline stage, each by virtual stage.

    Raises `InputError` for a split of layers that Megatron-Core would refuse.
    """
    numbers, kinds = _numbered_kinds(job.architecture)
    runs = cache(partial(layer_runs, kinds))
    programs = [
        chunk_program(runs(numbers[chunk.layers.start : chunk.layers.stop]), chunk)
        for chunk in model_chunks(job)
    ]
    stages = job.layout.pipeline_model_parallel_size
    return [tuple(programs[stage::stages]) for stage in range(stages)]


def chunk_program(runs: tuple[Run, ...], chunk: Chunk) -> Program:
    """The program of one chunk, of which the layers are `runs`."""
    return Program(
        runs=runs,
        embedding=chunk.embedding,
        mtp_layers=chunk.mtp_layers,
        head=chunk.head,
        final_norm=chunk.final_norm,
        first=chunk.pp == 0 and chunk.vpp == 0,
    )


def layer_runs(kinds: Sequence[LayerKind], numbers: Sequence[int]) -> tuple[Run, ...]:
    """Layers by the number of their kind, equal ones in a row together."""
    return tuple(Run(kinds[number], len(list(run))) for number, run in groupby(numbers))


def expanded(runs: Sequence[Run]) -> list[LayerKind]:
    """The kind of every layer of some runs, in order."""
    return [run.kind for run in runs for _ in range(run.layers)]


@lru_cache(maxsize=64)
def _numbered_kinds(architecture: Architecture) -> tuple[tuple[int, ...], tuple[LayerKind, ...]]:
    """A number for the kind of each layer, and the kinds: numbers compare faster."""
    kinds = architecture_layers(architecture)
    distinct = tuple(dict.fromkeys(kinds))
    index = {kind: number for number, kind in enumerate(distinct)}
    return tuple(index[kind] for kind in kinds), distinct
