"""One kind of collective of one rank, before it is counted over layers and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all_gather", "reduce_scatter", "all_reduce"
ALL_TO_ALL, SEND, RECV = "all_to_all", "send", "recv"
FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
GRADIENTS, OPTIMIZER, LOGGING = "gradients", "optimizer", "logging"

TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"
CONTEXT = "CONTEXT_PARALLEL_GROUP"
DATA = "DATA_PARALLEL_GROUP_WITH_CP"
EXPERT = "EXPERT_MODEL_PARALLEL_GROUP"
EXPERT_TENSOR = "EXPERT_TENSOR_PARALLEL_GROUP"
EXPERT_TENSOR_AND_MODEL = "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"
EXPERT_DATA = "EXPERT_DATA_PARALLEL_GROUP"
TENSOR_AND_CONTEXT = "TENSOR_AND_CONTEXT_PARALLEL_GROUP"
TENSOR_DATA_AND_CONTEXT = "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"
EMBEDDING = "EMBEDDING_GROUP"
MODEL = "MODEL_PARALLEL_GROUP"
WORLD = "default_pg"  # torch's default group


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """`calls` equal collectives; `elements` of `dtype` are the full tensor of one.

    `name` says which tensor. `modules` are the `recompute_modules` that issue a forward one again.
    `only_with_gradients`: left out of a forward that recomputation will run again. `flag` is the
    Megatron-LM setting that hides it behind compute, `hidden` that it is hidden in any case.
    `peer` is the other rank of a send or receive.
    """

    name: str
    group: str
    collective: str
    phase: str
    elements: int
    dtype: str
    calls: int = 1
    modules: tuple[str, ...] = ()
    only_with_gradients: bool = False
    flag: str | None = None
    hidden: bool = False
    peer: int | None = None


def both_ways(
    name: str,
    group: str,
    forward: str,
    elements: int,
    dtype: str,
    *,
    modules: tuple[str, ...] = (),
    flag: str | None = None,
) -> list[Collective]:
    """A collective and its transpose in backward, of the same full tensor."""
    transposed = {
        ALL_GATHER: REDUCE_SCATTER,
        REDUCE_SCATTER: ALL_GATHER,
        ALL_TO_ALL: ALL_TO_ALL,
    }
    return [
        Collective(
            name=name,
            group=group,
            collective=collective,
            phase=phase,
            elements=elements,
            dtype=dtype,
            modules=modules,
            flag=flag,
        )
        for collective, phase in ((forward, FORWARD), (transposed[forward], BACKWARD))
    ]
