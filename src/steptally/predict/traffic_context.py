"""What context parallelism moves: keys and values round a ring, gathered, or heads exchanged.

Source: Transformer Engine 2.x, attention/dot_product_attention/context_parallel.py
(`AttnFuncWithCPAndKVP2P`, `…KVAllGather`, `…QKVOA2A`): Megatron-Core leaves it to that.
"""

from __future__ import annotations

from steptally.job.job import Job
from steptally.predict.collective import (
    ALL_GATHER,
    ALL_TO_ALL,
    BACKWARD,
    CONTEXT,
    FORWARD,
    RECV,
    REDUCE_SCATTER,
    SEND,
    Collective,
)
from steptally.predict.layers import LayerKind
from steptally.predict.microbatch import gathered_tokens
from steptally.predict.products import CORE_ATTENTION
from steptally.predict.ranks import group_ranks


def attention_context_collectives(job: Job, kind: LayerKind, rank: int) -> list[Collective]:
    """Context-parallel collectives of one layer's core attention and micro-batch."""
    if job.layout.context_parallel_size == 1 or kind.mixer not in ("attention", "mla"):
        return []
    exchanges = {"p2p": _ring, "allgather": _all_gather, "a2a": _all_to_all}
    exchange = exchanges.get(job.layout.cp_comm_type)
    return exchange(job, kind, rank) if exchange else []


def _sizes(job: Job, kind: LayerKind) -> tuple[int, int, int, int]:
    """Elements of Q, K, V and the output of one rank and micro-batch."""
    architecture, tokens = job.architecture, gathered_tokens(job)
    tp = job.layout.tensor_model_parallel_size
    heads = architecture.num_attention_heads // tp
    if kind.mixer == "mla":
        keys = architecture.qk_head_dim + architecture.qk_pos_emb_head_dim
        values, groups = architecture.v_head_dim, heads
    else:
        keys = values = architecture.kv_channels
        groups = max(1, architecture.num_query_groups // tp)
    return (
        tokens * heads * keys,
        tokens * groups * keys,
        tokens * groups * values,
        tokens * heads * values,
    )


def _ring(job: Job, kind: LayerKind, rank: int) -> list[Collective]:
    """K and V go round cp − 1 times; in backward they do so again, and dK and dV with them.

    Backward's first exchange carries K and V, its last dK and dV, those between all four.
    """
    _, keys, values, _ = _sizes(job, kind)
    size, parts = keys + values, job.layout.context_parallel_size
    steps = [
        ("K and V", FORWARD, size, parts - 1),
        ("K and V", BACKWARD, size, 1),
        ("K, V, dK and dV", BACKWARD, 2 * size, parts - 2),
        ("dK and dV", BACKWARD, size, 1),
    ]
    members = group_ranks(job, CONTEXT, rank)
    position = members.index(rank)
    peers = ((SEND, members[(position + 1) % parts]), (RECV, members[position - 1]))
    return [
        Collective(
            name=f"core_attention {name}",
            group=CONTEXT,
            collective=collective,
            phase=phase,
            elements=elements,
            dtype=job.recipe.params_dtype,
            calls=calls,
            modules=CORE_ATTENTION,
            hidden=True,
            peer=peer,
        )
        for name, phase, elements, calls in steps
        if calls
        for collective, peer in peers
    ]


def _all_gather(job: Job, kind: LayerKind, rank: int) -> list[Collective]:
    """K and V gathered before attention, in backward again, and dK and dV scattered after it."""
    _, keys, values, _ = _sizes(job, kind)
    parts = job.layout.context_parallel_size
    steps = [
        (ALL_GATHER, FORWARD, ""),
        (ALL_GATHER, BACKWARD, ""),
        (REDUCE_SCATTER, BACKWARD, "d"),
    ]
    return [
        _exposed(job, f"{prefix}{name}", collective, phase, parts * size)
        for collective, phase, prefix in steps
        for name, size in (("K", keys), ("V", values))
    ]


def _all_to_all(job: Job, kind: LayerKind, rank: int) -> list[Collective]:
    """Sequence parts for heads: Q, K, V and back the output; in backward also dO and dQ, dK, dV."""
    queries, keys, values, output = _sizes(job, kind)
    forward = (("Q", queries), ("K", keys), ("V", values), ("O", output))
    backward = (("O", output), ("dO", output), ("dQ", queries), ("dK", keys), ("dV", values))
    return [
        _exposed(job, name, ALL_TO_ALL, phase, size)
        for phase, tensors in ((FORWARD, forward), (BACKWARD, backward))
        for name, size in tensors
    ]


def _exposed(job: Job, name: str, collective: str, phase: str, elements: int) -> Collective:
    return Collective(
        name=f"core_attention {name}",
        group=CONTEXT,
        collective=collective,
        phase=phase,
        elements=elements,
        dtype=job.recipe.params_dtype,
        modules=CORE_ATTENTION,
    )
