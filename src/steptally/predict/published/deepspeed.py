"""Memory of Megatron-DeepSpeed's pipeline, which keeps gradients and optimizer state its own way.

Activations are those of Megatron-Core's own layers. Sources: DeepSpeed 0.6 `BF16_Optimizer`,
`DeepSpeedZeroOptimizer` (stage_1_and_2.py) and `PipelineEngine`, which keeps each micro-batch's
output tensor until its backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from steptally.job import Job
from steptally.predict.memory.stage import StageMemory, all_stages


class States(NamedTuple):
    """Bytes of a parameter: on every rank, cut over data-parallel ranks, and cut in the update."""

    whole: int
    shard: int
    update: int


# bf16 parameters and gradients 2 + 2, fp32 parameters and moments 4 + 8. The bf16 optimizer adds
# fp32 gradients; ZeRO flattens its part of the gradients, in bf16 and in fp32, to update.
STATES: Mapping[str, States] = {
    "bf16-optimizer": States(2 + 2 + 4, 4 + 8, 0),
    "zero-1": States(2 + 2, 4 + 8, 2 + 4),
}


def deepspeed_peaks(job: Job, optimizer: str, *, sharded: bool) -> list[int]:
    """Bytes of tensors at the peak of a rank of each pipeline stage.

    `sharded` is false for ZeRO stage 0, where every rank keeps all of the optimizer state.
    """
    return [_peak(job, stage, STATES[optimizer], sharded) for stage in all_stages(job)]


def _peak(job: Job, stage: StageMemory, states: States, sharded: bool) -> int:
    layout = job.layout
    parameters = stage.parameter_bytes // 2
    ranks = layout.data_parallel_size if sharded else 1
    hidden = job.architecture.hidden_size
    output = 2 * layout.micro_batch_size * layout.seq_length * hidden * sum(stage.moment.in_flight)
    return (
        parameters * states.whole
        + parameters * states.shard // ranks
        + max(stage.activation_peak + output, parameters * states.update // ranks)
    )
