"""How often one layer of one chunk runs its forward again in backward, per micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job.job import Job
from steptally.predict.recompute import recomputed_modules
from steptally.predict.stages import Chunk


def layer_runs_again(job: Job, chunk: Chunk, position: int) -> bool:
    """Whether full recomputation runs the chunk's `position`-th layer again.

    `uniform`: every layer; `block`: the first `recompute_num_layers` of the chunk
    (`TransformerBlock._checkpointed_forward`, megatron-core 0.16.1).
    """
    layout = job.layout
    if layout.recompute_granularity != "full" or position >= len(chunk.layers):
        return False
    return layout.recompute_method == "uniform" or position < (layout.recompute_num_layers or 0)


def mtp_runs_again(job: Job) -> bool:
    """Whether full recomputation runs an MTP depth again: `uniform` does, `block` does not."""
    layout = job.layout
    return layout.recompute_granularity == "full" and layout.recompute_method == "uniform"


def selective_reruns(job: Job, modules: Sequence[str]) -> int:
    """How many nested checkpoints of `recompute_modules` run a product of `modules` again."""
    return len(recomputed_modules(job).intersection(modules))
