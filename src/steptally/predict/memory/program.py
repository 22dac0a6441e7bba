"""What each model chunk runs, apart from where it stands: equal programs have equal memory.

A job of 64 stages has three or four distinct programs: the first stage, the last, and those
between. Each is accounted for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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
    stages: list[list[Program]] = [[] for _ in range(job.layout.pipeline_model_parallel_size)]
    for chunk in model_chunks(job):
        stages[chunk.pp].append(chunk_program(job.architecture, chunk))
    return [tuple(stage) for stage in stages]


def chunk_program(architecture: Architecture, chunk: Chunk) -> Program:
    """The program of one chunk."""
    return Program(
        runs=layer_runs(architecture, chunk.layers),
        embedding=chunk.embedding,
        mtp_layers=chunk.mtp_layers,
        head=chunk.head,
        final_norm=chunk.final_norm,
        first=chunk.pp == 0 and chunk.vpp == 0,
    )


def layer_runs(architecture: Architecture, layers: range) -> tuple[Run, ...]:
    """The kinds of so many layers, equal ones in a row together."""
    numbers, kinds = _numbered_kinds(architecture)
    return tuple(
        Run(kinds[number], len(list(run)))
        for number, run in groupby(numbers[layers.start : layers.stop])
    )


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
