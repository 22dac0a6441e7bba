"""What a device holds beside the tensors that torch has allocated: constants, each with a source.

None of them is part of the allocated peak; all of them must fit beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steptally.job import Device, Job
from steptally.predict.memory.resident import Line
from steptally.predict.memory.stage import StageMemory
from steptally.predict.ranks import expert_data_parallel_size

OUTSIDE = "outside"
MIB = 2**20


class Constant(NamedTuple):
    """A measured or fitted number and where it is from."""

    name: str
    value: float
    unit: str
    source: str


CONTEXT = {
    "Ampere": Constant(
        "CUDA context and kernels, A100",
        1271 * MIB,
        "byte",
        "bigscience-workshop/bigscience, chronicles-prequel.md: 1271 MiB before any tensor",
    ),
    "Hopper": Constant(
        "CUDA context and kernels, H100",
        1_060_000_000,
        "byte",
        "NVIDIA/nccl#1685: 1.06 GB that torch does not count, before the first all-to-all",
    ),
}
# NVIDIA/nccl#964, on 4 A100 with NVLink: what each group's first all-reduce took.
PAIR = Constant("NCCL communicator of 2 ranks", 544 * MIB, "byte", "NVIDIA/nccl#964")
GROUP = Constant("NCCL communicator of more ranks", 688 * MIB, "byte", "NVIDIA/nccl#964")
PEER = Constant(
    "NCCL all-to-all, a peer",
    3_280_000_000 / 7,
    "byte",
    "NVIDIA/nccl#1685: 3.28 GB at the first all-to-all of 8 H100; farther peers get few channels",
)
MOST_PEERS = 7
DRIVER = Constant(
    "kept by the driver, of the nominal memory",
    0.01,
    "1",
    "NVIDIA-NeMo/Automodel#3907: torch sees 184.31 of a GB200's 186 GiB",
)
RESERVE = Constant(
    "allocator's reserve, of the allocated peak",
    0.052,
    "1",
    "fitted: mean of reserved / allocated − 1 of 12 B200 runs (MooreThreads/SimuMax, v1.2), "
    "2.8 % to 7.9 %; left out by model 0.048 to 0.061; assumed for every other device",
)
CONSTANTS = (*CONTEXT.values(), PAIR, GROUP, PEER, DRIVER, RESERVE)


def outside_lines(job: Job, stage: StageMemory, device: Device | None) -> tuple[Line, ...]:
    """Driver, context, communicators and the allocator's reserve of one rank, in bytes.

    The driver's part is left out where the device is not known.
    """
    lines = [
        Line(OUTSIDE, "context and kernels", context_bytes(device)),
        *nccl_lines(job, stage),
        Line(OUTSIDE, "allocator's reserve", round(RESERVE.value * stage.peak)),
    ]
    if device is not None and device.memory_bytes:
        kept = round(DRIVER.value * device.memory_bytes)
        lines.insert(0, Line(OUTSIDE, "kept by the driver", kept))
    return tuple(line for line in lines if line.bytes)


def context_bytes(device: Device | None) -> int:
    """What the process takes on the device before its first tensor; Hopper's where not known."""
    architecture = device.architecture if device is not None else ""
    return int(CONTEXT.get(architecture, CONTEXT["Hopper"]).value)


def nccl_lines(job: Job, stage: StageMemory) -> Sequence[Line]:
    """Buffers of the communicators that a rank uses: one a process group, made when first used.

    NCCL's memory grows with channels, not with ranks beyond two nodes (NVIDIA/nccl#864).
    """
    rings = 0
    for size in communicator_sizes(job, stage):
        rings += int((PAIR if size == 2 else GROUP).value)
    peers = sum(min(size - 1, MOST_PEERS) for size in exchanging_sizes(job, stage))
    return (
        Line(OUTSIDE, "NCCL communicators", rings),
        Line(OUTSIDE, "NCCL all-to-all buffers", round(PEER.value * peers)),
    )


def communicator_sizes(job: Job, stage: StageMemory) -> list[int]:
    """Sizes of the process groups of more than one rank in which the stage's ranks communicate.

    Tensor, context, pipeline and data parallel; experts' own; embedding; the gradient norm's.
    """
    layout, recipe = job.layout, job.recipe
    tp, cp, pp = (
        layout.tensor_model_parallel_size,
        layout.context_parallel_size,
        layout.pipeline_model_parallel_size,
    )
    ends = any(program.embedding or program.head for program in stage.programs)
    tied = not job.architecture.untie_embeddings_and_output_weights
    sizes = [
        tp,
        cp,
        pp,
        layout.data_parallel_size * cp,
        2 if pp > 1 and ends and tied else 1,
        layout.world_size if recipe.use_distributed_optimizer else tp * pp,
    ]
    if has_experts(stage):
        sizes += [
            layout.expert_model_parallel_size,
            layout.expert_tensor_parallel_size,
            expert_data_parallel_size(layout),
        ]
    return [size for size in sizes if size > 1]


def exchanging_sizes(job: Job, stage: StageMemory) -> list[int]:
    """Sizes of the groups that exchange all to all: experts' dispatch, and Ulysses attention."""
    layout = job.layout
    sizes = []
    if layout.cp_comm_type == "a2a":
        sizes.append(layout.context_parallel_size)
    if has_experts(stage) and job.recipe.moe_token_dispatcher_type != "allgather":
        sizes.append(layout.expert_model_parallel_size)
    return [size for size in sizes if size > 1]


def has_experts(stage: StageMemory) -> bool:
    """Whether a stage runs a layer of experts."""
    return any(run.kind.mlp == "moe" for program in stage.programs for run in program.runs)
