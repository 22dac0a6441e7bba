"""The forward and backward passes of a step: which chunk and micro-batch, from where to where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import megatron.core.pipeline_parallel.schedules as schedules
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup

from steptally.engine.cpu import Replacement
from steptally.rehearse.phases import BACKWARD, FORWARD, GRADIENTS, OPTIMIZER
from steptally.rehearse.place import Place
from steptally.rehearse.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward or backward pass of a chunk; `began` and `ended` are moments of storages."""

    kind: str
    chunk: int
    microbatch: int
    began: int
    ended: int


class Passes:
    """Notes each pass that Megatron's schedule runs."""

    def __init__(self, recorder: Recorder, chunks: list[Any]) -> None:
        self.noted: list[Pass] = []
        self._recorder = recorder
        self._numbers = {id(chunk): number for number, chunk in enumerate(chunks)}
        self._started: Counter[int] = Counter()

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.noted)

    def replacements(self) -> tuple[Replacement, ...]:
        """Names of the schedule and of DDP that tell where a step is."""
        owner = "megatron.core.pipeline_parallel.schedules"
        buckets = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup"
        staged = self._recorder.staged
        return (
            Replacement(owner, "forward_step", self._forward(schedules.forward_step)),
            Replacement(owner, "backward_step", self._backward(schedules.backward_step)),
            # Overlapped buckets are sent from autograd's hooks, parameters gathered by a module's.
            Replacement(
                buckets,
                "start_grad_sync",
                staged(GRADIENTS, _ParamAndGradBucketGroup.start_grad_sync),
            ),
            Replacement(
                buckets,
                "start_param_sync",
                staged(OPTIMIZER, _ParamAndGradBucketGroup.start_param_sync),
            ),
        )

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward_step(function: Any, data: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            chunk = self._numbers[id(model)]
            place = Place("", chunk, self._started[chunk])
            self._started[chunk] += 1
            began = self._recorder.storages.moment
            with self._recorder.places.inside(place):
                result = original(function, data, model, *args, **kwargs)
            self._note(FORWARD, place, began)
            return result

        return forward_step

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward_step(inputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            last = outputs[0] if isinstance(outputs, list) else outputs
            place = self._recorder.places.where_made(last)
            began = self._recorder.storages.moment
            with self._recorder.places.backward():
                result = original(inputs, outputs, *args, **kwargs)
            self._note(BACKWARD, place, began)
            return result

        return backward_step

    def _note(self, kind: str, place: Place, began: int) -> None:
        ended = self._recorder.storages.moment
        self.noted.append(Pass(kind, place.chunk or 0, place.microbatch or 0, began, ended))
