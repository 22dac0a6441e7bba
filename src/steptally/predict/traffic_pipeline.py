"""What pipeline parallelism moves: activations to the next stage, gradients to the one before.

Sources, megatron-core 0.16.1: pipeline_parallel/schedules.py and p2p_communication.py.
"""

from __future__ import annotations

from steptally.job.job import Job
from steptally.predict.collective import (
    BACKWARD,
    FORWARD,
    PIPELINE,
    RECV,
    SEND,
    WORLD,
    Collective,
)
from steptally.predict.microbatch import shard_tokens
from steptally.predict.ranks import coordinates, group_ranks
from steptally.predict.stages import model_chunks

SHAPE_ELEMENTS = 3  # sequence, micro-batch, hidden


def pipeline_collectives(job: Job, rank: int) -> list[Collective]:
    """Sends and receives of one rank for one micro-batch, over all its chunks.

    Every chunk but the model's first receives activations and sends their gradients back; every
    chunk but the last sends activations on. Where MTP stands before the last stage, tensors behind
    it hold 1 + mtp_num_layers hidden states, and each message follows one with its shape.
    """
    if job.layout.pipeline_model_parallel_size == 1:
        return []
    pp = coordinates(job.layout, rank).pp
    stages = group_ranks(job, PIPELINE, rank)
    previous, following = stages[pp - 1], stages[(pp + 1) % len(stages)]
    chunks = model_chunks(job)
    found = []
    for index, chunk in enumerate(chunks):
        if chunk.pp != pp:
            continue
        if index > 0:
            size = _boundary_elements(job, index)
            found += _message(job, "activations", FORWARD, RECV, size, previous, pp)
            found += _message(job, "activation gradients", BACKWARD, SEND, size, previous, pp)
        if index < len(chunks) - 1:
            size = _boundary_elements(job, index + 1)
            found += _message(job, "activations", FORWARD, SEND, size, following, pp)
            found += _message(job, "activation gradients", BACKWARD, RECV, size, following, pp)
    return found


def mtp_stands_alone(job: Job) -> bool:
    """Whether the MTP depths are built on a pipeline rank before the last."""
    last = job.layout.pipeline_model_parallel_size - 1
    return any(chunk.mtp_layers and chunk.pp != last for chunk in model_chunks(job))


def _boundary_elements(job: Job, index: int) -> int:
    """Elements that cross into the chunk at `index` of the model's order."""
    hidden_states = 1
    if any(chunk.mtp_layers for chunk in model_chunks(job)[:index]):
        hidden_states += job.architecture.mtp_num_layers or 0
    return shard_tokens(job) * job.architecture.hidden_size * hidden_states


def _group(collective: str, pp: int, stages: int, overlapped: bool) -> str:
    """Of two stages that overlap messages, the odd one sends over torch's default group.

    Two messages between the same two ranks then have a communicator each (`_p2p_ops`).
    """
    from_odd_stage = (collective == SEND) == (pp % 2 == 1)
    return WORLD if stages == 2 and overlapped and from_odd_stage else PIPELINE


def _message(
    job: Job, name: str, phase: str, collective: str, elements: int, peer: int, pp: int
) -> list[Collective]:
    stages = job.layout.pipeline_model_parallel_size
    interleaved = len(model_chunks(job)) > stages
    message = Collective(
        name=name,
        group=_group(collective, pp, stages, interleaved and job.recipe.overlap_p2p_communication),
        collective=collective,
        phase=phase,
        elements=elements,
        dtype=job.recipe.params_dtype,
        flag="overlap_p2p_communication" if interleaved else None,
        peer=peer,
    )
    if not mtp_stands_alone(job):
        return [message]
    shape = Collective(
        name=f"{name}, shape",
        group=PIPELINE,
        collective=collective,
        phase=phase,
        elements=SHAPE_ELEMENTS,
        dtype="int64",
        peer=peer,
    )
    return [shape, message]
