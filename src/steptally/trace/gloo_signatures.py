"""What gloo is seen to do for each collective: the transfers that one issue leads to.

torch's profiler shows a collective over gloo twice without linking the two: as the operator that
issues it (`c10d::allreduce_`) and as one or more transfers (`gloo:all_reduce`, on gloo's threads,
with sizes and dtype, without the process group). The table holds how ProcessGroupGloo carries
each operator out (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, torch 2.13; every row was
observed): a reduce-scatter runs as an all-reduce of the whole input, one for each tensor, and
coalesced all-gathers run as one.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any, NamedTuple

import msgspec

from steptally.trace.dtypes import dtype_name


class Signature(NamedTuple):
    """What an issue and its transfer have in common: kind, elements moved, dtype ("" if untold)."""

    transfer: str
    elements: int
    dtype: str


class _Rule(NamedTuple):
    transfer: str
    sized: bool = True  # whether the transfer shows the elements that the issue tells
    each: int | None = None  # the argument that lists tensors with a transfer of their own
    each_member: bool = False  # and those once for each member of the group


_RULES = {
    "allreduce_": _Rule("gloo:all_reduce"),
    "allreduce_coalesced_": _Rule("gloo:all_reduce"),
    "reduce_": _Rule("gloo:reduce"),
    "broadcast_": _Rule("gloo:broadcast"),
    "allgather_": _Rule("gloo:all_gather"),
    "_allgather_base_": _Rule("gloo:all_gather"),
    "allgather_coalesced_": _Rule("gloo:all_gather"),
    "allgather_into_tensor_coalesced_": _Rule("gloo:all_gather"),
    "reduce_scatter_": _Rule("gloo:all_reduce", each=0, each_member=True),
    "_reduce_scatter_base_": _Rule("gloo:all_reduce"),
    "reduce_scatter_tensor_coalesced_": _Rule("gloo:all_reduce", each=1),
    "alltoall_": _Rule("gloo:all_to_all"),
    "alltoall_base_": _Rule("gloo:all_to_all"),
    "gather_": _Rule("gloo:gather", sized=False),
    "scatter_": _Rule("gloo:scatter", sized=False),
    "barrier": _Rule("gloo:barrier", sized=False),
}
_SIZELESS = frozenset(rule.transfer for rule in _RULES.values() if not rule.sized)


def transfer_of(operator: str) -> str | None:
    """What the transfers of a c10d operator are called; None for those gloo runs on the caller."""
    rule = _RULES.get(operator)
    return rule.transfer if rule else None


def tells_dtype(signature: Signature) -> bool:
    """Whether a signature can be compared by dtype: it has one, or its kind never has."""
    return bool(signature.dtype) or signature.transfer in _SIZELESS


def transfer_signature(name: str, dimensions: str | None, types: str | None) -> Signature:
    """What a `gloo:*` event says it moves: the sum of its tensors."""
    if name in _SIZELESS:
        return Signature(name, 0, "")
    spelled = set(_decoded(types))
    dtype = spelled.pop() if len(spelled) == 1 else ""
    return Signature(name, sum(_elements(_decoded(dimensions))), dtype_name(dtype))


def issue_signatures(
    operator: str,
    elements_in: int | None,
    dtype: str | None,
    group_size: int | None,
    dimensions: str | None,
) -> list[Signature]:
    """The transfers to expect of a c10d operator; none for one that gloo runs on the caller.

    `elements_in` are those of this rank's input, `dimensions` the operator's "Input Dims".
    """
    rule = _RULES.get(operator)
    if rule is None:
        return []
    if not rule.sized:
        return [Signature(rule.transfer, 0, "")]
    name = dtype_name(dtype or "")
    arguments = _decoded(dimensions)
    if rule.each is None or rule.each >= len(arguments):
        return [Signature(rule.transfer, elements_in or 0, name)]
    times = (group_size or 1) if rule.each_member else 1
    sizes = _elements(arguments[rule.each])
    return [Signature(rule.transfer, size, name) for size in sizes] * times


def _elements(shapes: Any) -> list[int]:
    """The elements of each tensor of a list; those that a damaged file spoils have none."""
    try:
        return [math.prod(map(index, shape)) for shape in shapes]
    except TypeError:
        return []


def _decoded(text: str | None) -> list[Any]:
    value = msgspec.json.decode(text) if text else []
    return value if isinstance(value, list) else []
