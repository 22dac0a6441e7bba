"""What a call of torch.distributed says: collective, group, bytes, dtype and peer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from steptally.rehearse.dtypes import dtype_name

# Operators of torch's `c10d` namespace; what is not in here (barrier) moves no tensor.
COLLECTIVES: Mapping[str, str] = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
}
# Those whose full tensor is what goes in; of all others it is what comes out.
COUNTED_BY_INPUT = ("reduce_scatter", "all_to_all", "scatter")


@dataclass(frozen=True, slots=True)
class Collective:
    """One call. `size_bytes` is the full tensor's, not what passes a wire."""

    collective: str
    group: str
    ranks: tuple[int, ...]
    size_bytes: int
    dtype: str


def read_collective(name: str, args: tuple[Any, ...]) -> Collective | None:
    """The collective of a `c10d` operator; None where no tensor moves or the rank is alone."""
    kind = COLLECTIVES.get(name)
    if kind is None:
        return None
    group = next(_groups(args))
    if group.size() == 1:
        return None
    outputs = list(tensors(args[0]))
    inputs = list(tensors(args[1])) if len(args) > 1 else []
    counted = inputs if kind in COUNTED_BY_INPUT else outputs
    return Collective(
        collective=kind,
        group=group.group_desc,
        ranks=tuple(dist.get_process_group_ranks(group)),
        size_bytes=sum(tensor.numel() * tensor.element_size() for tensor in counted),
        dtype=dtype_name(counted[0].dtype),
    )


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument, lists of lists of them made flat."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def _groups(args: tuple[Any, ...]) -> Iterator[dist.ProcessGroup]:
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            yield dist.ProcessGroup.unbox(argument)
