"""Sees every operator and collective that Megatron-Core runs, and writes it down.

A dispatch mode above FakeTensorMode: fake tensors have shapes and no values, so that a matrix
product costs microseconds whatever its size. Where Megatron reads a value back to the host, the
recorder answers (`read_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from steptally.rehearse.collectives import Collective, read_collective, tensors
from steptally.rehearse.dtypes import dtype_name
from steptally.rehearse.phases import BACKWARD, BUILD, FORWARD, RECOMPUTE
from steptally.rehearse.place import Place, Places
from steptally.rehearse.purposes import PARAMETER
from steptally.rehearse.storages import Storages

# What a stand-in's kernel does, a product or anything else: nothing is computed, it is noted.
LIBRARY = torch.library.Library("steptally", "DEF")
LIBRARY.define("kernel(Tensor like, str name) -> ()")
LIBRARY.define("product(Tensor like, int m, int n, int k, int batch, int flops) -> ()")

MATRIX_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
DEVICE = torch.ops.prim.device.default
# Operators that only make or rename a tensor: no kernel runs.
NO_KERNEL = ("empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like")


@dataclass(frozen=True, slots=True)
class Product:
    """C[m,n] = A[m,k] · B[k,n], `batch` times. `by_weight`: an operand is a parameter."""

    m: int
    n: int
    k: int
    batch: int
    flops: int
    dtype: str
    by_weight: bool


@dataclass(slots=True)
class Operation:
    """One operator that runs a kernel, in the order of the rank's program.

    `allocated_bytes` is what the rank has allocated once it has run.
    """

    name: str
    phase: str
    place: Place
    product: Product | None = None
    collective: Collective | None = None
    allocated_bytes: int = 0


class Recorder(TorchDispatchMode):
    """What one rank does; see the attributes, all in the order in which it happened."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.places = Places()
        self.storages = Storages()
        self.stage: str | None = BUILD
        self.selected: int | None = None  # elements that a mask lets through
        self._rerun = 0
        self._paused = False
        self._messages: dict[int, str] = {}  # phase of a pipeline message, by storage

    def phase(self) -> str:
        """The phase of the operator that is now dispatched."""
        if self.stage is not None:
            return self.stage
        if self._rerun:
            return RECOMPUTE
        return FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD

    @contextmanager
    def during(self, stage: str | None) -> Iterator[None]:
        """The body's operators belong to this stage, whatever autograd is doing."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    def staged(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function during which operators belong to the stage."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.during(stage):
                return function(*args, **kwargs)

        return run

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The body's operators compute real values for the host; only collectives are counted."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def recomputing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose operators are recomputation when backward calls it."""
        placed = self.places.again(function)

        def run(*args: Any) -> Any:
            again = torch._C._current_graph_task_id() != -1
            self._rerun += again
            try:
                return placed(*args)
            finally:
                self._rerun -= again

        return run

    def announce(self, phase: str, *messages: torch.Tensor | None) -> None:
        """Pipeline messages that are about to be sent or received, and the pass they belong to."""
        for tensor in messages:
            if tensor is not None:
                self._messages[tensor.untyped_storage()._cdata] = phase

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator on fake tensors and note it."""
        if func is DEVICE:  # asked of every fake tensor, and a good part of all calls
            return args[0].device if type(args[0]) is torch.Tensor else args[0].fake_device
        kind = _kind(func)
        if kind == "view" or kind == "allocation" or (self._paused and kind != "collective"):
            result = func(*args, **(kwargs or {}))
            if kind == "allocation" and not self._paused:
                self.storages.see(result, self.places.here(), self.phase())
            return result
        if kind == "read_back":
            return read_back(args[0])
        operation = Operation(_name(func), self.phase(), self.places.here())
        if kind == "product":
            operation.product = self._product(args)
        elif kind == "stand-in":
            if operation.name == "kernel":
                operation.name = args[1]
            else:
                like, m, n, k, batch, flops = args
                dtype = dtype_name(like.dtype)
                operation.product = Product(m, n, k, batch, flops, dtype, by_weight=False)
            operation.allocated_bytes = self.storages.live_bytes
            self.operations.append(operation)
            return None
        elif kind == "collective":
            operation.collective = read_collective(operation.name, args)
            self._place_message(operation, args)
        if kind == "selection" and self.selected is not None:
            result = args[0].new_empty(self.selected)
        else:
            result = func(*args, **(kwargs or {}))
        if kind != "collective" or operation.collective is not None:
            self.operations.append(operation)
        if not self._paused:
            self._see(result, operation)
        operation.allocated_bytes = self.storages.live_bytes
        return result

    def _see(self, result: Any, operation: Operation) -> None:
        if isinstance(result, torch.Tensor):
            self.storages.see(result, operation.place, operation.phase)
        elif result is not None:
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.storages.see(leaf, operation.place, operation.phase)

    def _product(self, args: tuple[Any, ...]) -> Product:
        left, right = [a for a in args if isinstance(a, torch.Tensor)][-2:]
        batch = left.shape[0] if left.dim() == 3 else 1
        m, k = left.shape[-2:]
        n = right.shape[-1]
        return Product(
            m=m,
            n=n,
            k=k,
            batch=batch,
            flops=2 * m * n * k * batch,
            dtype=dtype_name(left.dtype),
            by_weight=any(self._is_parameter(operand) for operand in (left, right)),
        )

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        allocation = self.storages.of(tensor)
        return allocation is not None and allocation.lifetime == PARAMETER

    def _place_message(self, operation: Operation, args: tuple[Any, ...]) -> None:
        if self._messages and operation.name in ("send", "recv_"):
            (message,) = tensors(args[0])
            phase = self._messages.pop(message.untyped_storage()._cdata, None)
            operation.phase = phase or operation.phase


def read_back(tensor: torch.Tensor) -> float | int | bool:
    """What the host reads from a fake tensor: its constant if it has one, else a harmless value.

    Flags are down: a truth value, or a single element of a vector, which is a flag of overflow
    (Megatron's `found_inf`). A scalar, a norm or the number of a step, is 1, since Megatron and
    Adam divide by functions of it.
    """
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        return constant.item()
    if tensor.dtype == torch.bool:
        return False
    if not tensor.dtype.is_floating_point:
        return 0
    return 1.0 if tensor.dim() == 0 else 0.0


@cache
def _kind(func: Any) -> str:
    """Which of the recorder's cases an operator is."""
    name = _name(func)
    if func.namespace == "c10d":
        return "collective"
    if func.namespace == "steptally":
        return "stand-in"
    if name in MATRIX_PRODUCTS:
        return "product"
    if name == "_local_scalar_dense":
        return "read_back"
    if name == "masked_select":
        return "selection"
    if name in NO_KERNEL:
        return "allocation"
    aliases = [output.alias_info for output in func._schema.returns if output.alias_info]
    if func.namespace == "prim" or (aliases and not any(alias.is_write for alias in aliases)):
        return "view"
    return "operator"


@cache
def _name(func: Any) -> str:
    return str(func._schema.name).split("::")[1]
