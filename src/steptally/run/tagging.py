"""Gives every collective of a traced step its group, size and number, and every wait a name.

NCCL says in each trace event which process group a collective belongs to; gloo says nothing. While
`tagged_collectives` is entered, each `c10d` operator runs inside an event `steptally::collective`
that carries NCCL's own keys (their names: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and
torch/csrc/profiler/util.h), and each blocking wait is an event `steptally::wait`.

The operators are intercepted in PyTorch's dispatcher, at the key BackendSelect: every call passes
it just before its backend's kernel, on whatever thread it is issued, from Python or from C++.
A `TorchDispatchMode` would see one thread only, slow every operator of the step down, and make
`torch.compile` skip frames, so that the traced step would not be the step that runs otherwise.

Not covered: waits inside C++ (`torch.nn.parallel.DistributedDataParallel`'s reducer; Megatron's
own DDP waits from Python), and threads that the profiler does not follow (threads started by
Python code; autograd's and gloo's are followed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVE_EVENT = "steptally::collective"
WAIT_EVENT = "steptally::wait"

# Private, and the only way to put values into a Kineto event's args: checked with torch 2.13.
# Do not name an event `record_param_comms`: torch then drops its arguments.
_Event = torch._C._profiler._RecordFunctionFast
_BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
_AFTER_BACKEND_SELECT = torch._C._dispatch_keyset_full_after(_BACKEND_SELECT)

# Operators between a pair of ranks, and which of their arguments is the peer.
_PEER_ARGUMENT = {"send": "dst", "recv_": "src"}
_FROM_ANYONE = "recv_any_source_"  # its sender is not known when it is issued: no number

# What the arguments of c10d operators are called: the others are not data on the wire.
_IN_PLACE = ("tensors",)
_INPUTS = ("input", "inputs", "input_tensor", "input_tensors", "input_list")
_OUTPUTS = ("output", "outputs", "output_tensor", "output_tensors", "output_lists")


@contextmanager
def tagged_collectives(sequence: Counter[tuple[object, ...]]) -> Iterator[None]:
    """Tag all collectives and waits of this process until the block ends.

    `sequence` counts the collectives of each process group (and the messages of each pair of
    ranks). Every member of a group must enter with the same count: enter at the same step on all.
    Outside the block nothing is patched or registered.
    """
    if not dist.is_available():
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_tagged_operators(sequence))
        stack.enter_context(_named_waits())
        yield


@contextmanager
def _tagged_operators(sequence: Counter[tuple[object, ...]]) -> Iterator[None]:
    collectives = torch.library.Library("c10d", "IMPL")
    functional = torch.library.Library("_c10d_functional", "IMPL")
    try:
        for operator in _communicating_operators():
            kernel = _tagging_kernel(operator, sequence)
            collectives.impl(operator, kernel, "BackendSelect", with_keyset=True)
        wait = torch.ops._c10d_functional.wait_tensor.default
        functional.impl(wait, _waiting_kernel(wait), "BackendSelect", with_keyset=True)
        yield
    finally:
        collectives._destroy()
        functional._destroy()


def _communicating_operators() -> list[Any]:
    """Every `c10d` operator that is given a process group."""
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    packets = [getattr(torch.ops.c10d, name.removeprefix("c10d::").split(".")[0]) for name in names]
    operators = [getattr(packet, name) for packet in set(packets) for name in packet.overloads()]
    return [operator for operator in operators if "ProcessGroup" in str(operator._schema)]


def _tagging_kernel(operator: Any, sequence: Counter[tuple[object, ...]]) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        with _Event(COLLECTIVE_EVENT, [], _tag(operator._opname, arguments, sequence)):
            return operator.redispatch(keyset & _AFTER_BACKEND_SELECT, *args, **kwargs)

    return kernel


def _waiting_kernel(operator: Any) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with _Event(WAIT_EVENT, []):
            return operator.redispatch(keyset & _AFTER_BACKEND_SELECT, *args, **kwargs)

    return kernel


def _tag(
    opname: str, arguments: dict[str, Any], sequence: Counter[tuple[object, ...]]
) -> dict[str, object]:
    """What one call says about itself, under NCCL's keys; sizes are this rank's."""
    group = dist.ProcessGroup.unbox(arguments["process_group"])
    ranks = dist.get_process_group_ranks(group)
    in_place = _tensors(arguments, _IN_PLACE)
    inputs = in_place or _tensors(arguments, _INPUTS)
    outputs = in_place or _tensors(arguments, _OUTPUTS)
    tag: dict[str, object] = {
        "Collective name": opname,
        "Process Group Name": group.group_name,
        "Process Group Description": group.group_desc,
        "Process Group Ranks": str(ranks),
        "Group size": len(ranks),
        "In msg nelems": sum(tensor.numel() for tensor in inputs),
        "Out msg nelems": sum(tensor.numel() for tensor in outputs),
        "In msg bytes": sum(tensor.nbytes for tensor in inputs),
        "Out msg bytes": sum(tensor.nbytes for tensor in outputs),
    }
    if inputs or outputs:  # a barrier has no dtype
        tag["dtype"] = _dtype_name([*inputs, *outputs])
    if opname in _PEER_ARGUMENT:
        here, peer = dist.get_rank(), ranks[arguments[_PEER_ARGUMENT[opname]]]
        source, destination = (here, peer) if opname == "send" else (peer, here)
        tag |= {"Src Rank": source, "Dst Rank": destination}
        tag["Seq"] = _next(sequence, (group.group_name, opname, source, destination))
    elif opname != _FROM_ANYONE:
        tag["Seq"] = _next(sequence, (group.group_name,))
    return tag


def _next(sequence: Counter[tuple[object, ...]], key: tuple[object, ...]) -> int:
    number = sequence[key]
    sequence[key] += 1
    return number


def _tensors(arguments: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    """The tensors among the named arguments, lists of lists of them made flat."""
    pending = [arguments[name] for name in names if name in arguments]
    found = []
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
    return found


def _dtype_name(tensors: list[Any]) -> str:
    """The dtype as NCCL's events spell it (`Float`, `BFloat16`), or all of them, joined by `,`."""
    return ",".join(sorted({_scalar_type_name(tensor.dtype) for tensor in tensors}))


def _scalar_type_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _SCALAR_TYPE_NAMES.get(name, name[:1].upper() + name[1:])


# c10::toString(ScalarType), where it is not the Python name with a capital letter.
_SCALAR_TYPE_NAMES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


@contextmanager
def _named_waits() -> Iterator[None]:
    """Make the waits that Python code calls show as events.

    A synchronous `dist.*` call waits through the same attribute, and so do coalescing managers.
    """
    places = [(dist.Work, "wait"), (dist.Work, "synchronize"), (torch.futures.Future, "wait")]
    originals = [(place, name, place.__dict__[name]) for place, name in places]
    for place, name, original in originals:
        setattr(place, name, _waiting_method(original))
    try:
        yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)


def _waiting_method(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Event(WAIT_EVENT, []):
            return original(self, *args, **kwargs)

    return wait
