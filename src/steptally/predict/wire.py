"""What a collective puts on the wire: bytes that leave a rank, and those that leave its fast links.

Ring algorithms send the least that is possible; the factors are those of nccl-tests
(doc/PERFORMANCE.md, "bus bandwidth").
"""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job.job import Job
from steptally.predict.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    RECV,
    REDUCE_SCATTER,
    SEND,
)


def sent_bytes(collective: str, size_bytes: int, ranks: int) -> int:
    """Bytes that one of `ranks` sends to others for one collective of a full tensor.

    >>> sent_bytes("all_reduce", 1024, 4)
    1536
    """
    if collective in (SEND, RECV):
        return size_bytes if collective == SEND else 0
    rounds = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1, ALL_TO_ALL: 1}
    return rounds[collective] * size_bytes * (ranks - 1) // ranks


def network_bytes(
    job: Job, collective: str, size_bytes: int, rank: int, members: Sequence[int]
) -> int | None:
    """Of the bytes sent, those to ranks that only the network reaches.

    For a send, `members` are its two ends. None where the library's algorithm decides: a ring, a
    tree or a hierarchy over several nodes.
    """
    outside = sum(link_domain(job, other) != link_domain(job, rank) for other in members)
    if not outside:
        return 0
    if collective in (SEND, RECV):
        return sent_bytes(collective, size_bytes, len(members))
    return size_bytes * outside // len(members) if collective == ALL_TO_ALL else None


def link_domain(job: Job, rank: int) -> int:
    """The number of the node of a rank, or of the rack whose fast link joins several nodes."""
    cluster = job.cluster
    return rank // max(cluster.devices_per_node, cluster.link_domain_size or 0)
