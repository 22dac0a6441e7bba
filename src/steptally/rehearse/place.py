"""Where in the model an operator runs: module, chunk, micro-batch, also in backward.

In forward, module hooks tell. In backward autograd runs nodes, not modules; but each node carries
the sequence number that autograd gave it in forward, and numbers only grow. So the number at which
each module began is kept, and the last one not above a node's number is where that node was made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

# Autograd's number of nodes that add to a parameter's gradient: they belong to no module.
ACCUMULATE_GRAD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A module's path in its chunk (empty outside any), the chunk, and the micro-batch from 0."""

    module: str = ""
    chunk: int | None = None
    microbatch: int | None = None


OUTSIDE = Place()


class Places:
    """Follows this thread through the modules of the model's chunks."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}  # by id of the module
        self.stack: list[Place] = [OUTSIDE]
        self._floor = 1  # of the stack, below which backward's nodes know better
        self._numbers: list[int] = [0]  # of autograd, growing
        self._places: list[Place] = [OUTSIDE]  # where each of those began

    def name_modules(self, chunks: list[torch.nn.Module]) -> None:
        """Learn the path of every module of the chunks."""
        for chunk in chunks:
            self.paths.update((id(module), name) for name, module in chunk.named_modules() if name)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow forward calls of modules in the body."""
        handles = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def inside(self, place: Place) -> Iterator[None]:
        """Everything in the body happens at `place`, until a module is entered."""
        self._push(place)
        try:
            yield
        finally:
            self._pop()

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The body runs autograd's nodes."""
        before, self._floor = self._floor, len(self.stack)
        try:
            yield
        finally:
            self._floor = before

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs where it is wrapped, whenever it is called (recomputation)."""
        place = self.stack[-1]

        def run(*args: Any) -> Any:
            with self.inside(place):
                return function(*args)

        return run

    def here(self) -> Place:
        """Where the operator that is now dispatched belongs."""
        node = torch._C._current_autograd_node()
        if node is None or len(self.stack) > self._floor:
            return self.stack[-1]
        return self._place_of(node)

    def where_made(self, tensor: torch.Tensor) -> Place:
        """The place whose forward gave a tensor that needs a gradient."""
        return self._place_of(tensor.grad_fn)

    def _place_of(self, node: Any) -> Place:
        number = node._sequence_nr()
        if number == ACCUMULATE_GRAD:
            return OUTSIDE
        return self._places[bisect_right(self._numbers, number) - 1]

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        current = self.stack[-1]
        path = self.paths.get(id(module), current.module)
        self._push(Place(path, current.chunk, current.microbatch))

    def _leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        self._pop()

    def _push(self, place: Place) -> None:
        self.stack.append(place)
        self._mark(place)

    def _pop(self) -> None:
        self.stack.pop()
        self._mark(self.stack[-1])

    def _mark(self, place: Place) -> None:
        number = torch.autograd._get_sequence_nr()
        if number == self._numbers[-1]:
            self._places[-1] = place
        else:
            self._numbers.append(number)
            self._places.append(place)
