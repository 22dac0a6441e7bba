"""What multi-token prediction exchanges with context parallelism: the tokens at the boundaries.

Each depth shifts tokens by one, so that context-parallel neighbours swap the first token of each of
their two slices. Source: `roll_tensor` (megatron-core 0.16.1,
transformer/multi_token_prediction.py), which uses torch's default process group.
"""

from __future__ import annotations

from steptally.job.job import Job
from steptally.predict.collective import CONTEXT, FORWARD, RECV, SEND, WORLD, Collective
from steptally.predict.ranks import group_ranks


def mtp_boundary_collectives(job: Job, rank: int, *, labels: bool) -> list[Collective]:
    """Sends and receives of one depth: of labels and loss mask, else of tokens and positions."""
    if job.layout.context_parallel_size == 1:
        return []
    tensors = (
        (("labels", "int64"), ("loss mask", "fp32"))
        if labels
        else (("tokens", "int64"), ("position ids", "int64"))
    )
    members = group_ranks(job, CONTEXT, rank)
    position = members.index(rank)
    peers = [members[i] for i in (position - 1, position + 1) if 0 <= i < len(members)]
    return [
        Collective(
            name=f"mtp {name} at the boundary",
            group=WORLD,
            collective=collective,
            phase=FORWARD,
            elements=job.layout.micro_batch_size,
            dtype=dtype,
            peer=peer,
        )
        for name, dtype in tensors
        for peer in peers
        for collective in (SEND, RECV)
    ]
