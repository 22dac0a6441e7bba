"""The faults of one rank, brought to act where they belong in its step.

    with injector.entered(), megatron_on_cpu():
        ...
        injector.place(job, rank=rank, stage=pipeline_rank)
        with injector.slow_links():
            with recorder.step() as record, injector.step(number, chunks):
                train_step(..., injector.batches(iterator))

A rank that no fault concerns runs its step as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from steptally.engine.cpu import Replacement, replaced
from steptally.job import Job
from steptally.run.faults.communication import around_communication
from steptally.run.faults.experts import imbalanced_experts
from steptally.run.faults.fault import (
    BACKWARD,
    FORWARD,
    DataStall,
    Fault,
    ImbalancedExperts,
    Pause,
    SlowLink,
    SlowRank,
    SlowStage,
)
from steptally.run.faults.slow_compute import SCHEDULE, SlowCompute, extra_of, in_phase
from steptally.run.faults.slow_link import SlowLinks
from steptally.run.faults.stalls import paused_layer, pauses_of, stall
from steptally.run.faults.stamps import Stamps

Batch = TypeVar("Batch")


class Injector:
    """Built and entered before the engine; does nothing until `place` says which rank it is on."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self._rank, self._world_size, self._seed = 0, 1, 0
        self._compute: SlowCompute | None = None
        self._stalls: list[DataStall] = []
        self._pauses: list[Pause] = []
        self._stall_ns = 0
        if any(isinstance(fault, SlowRank | SlowStage) for fault in faults):
            self._compute = SlowCompute()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Around everything that the rank does, the engine's own modes included."""
        with ExitStack() as stack:
            if self._compute is not None:
                stack.enter_context(self._compute)
            yield

    def place(self, job: Job, *, rank: int, stage: int) -> None:
        """Keep the faults that concern this rank."""
        self._rank, self._world_size, self._seed = rank, job.layout.world_size, job.recipe.seed
        slow = [
            (fault.phase, fault.factor)
            for fault in self._faults
            if (isinstance(fault, SlowRank) and fault.rank == rank)
            or (isinstance(fault, SlowStage) and fault.stage == stage)
        ]
        if self._compute is not None and slow:
            self._compute.extra = extra_of(slow)
        else:
            self._compute = None
        self._stalls = [
            fault for fault in self._faults if isinstance(fault, DataStall) and fault.rank == rank
        ]
        self._pauses = [fault for fault in self._faults if isinstance(fault, Pause)]

    @contextmanager
    def slow_links(self) -> Iterator[None]:
        """Around all steps, once the groups exist: every rank must enter it."""
        faults = [fault for fault in self._faults if isinstance(fault, SlowLink)]
        if not faults:
            yield
            return
        with ExitStack() as stack:
            told = [""]
            if self._rank == 0:
                told[0] = stack.enter_context(tempfile.TemporaryDirectory(prefix="steptally-"))
            dist.broadcast_object_list(told)
            stack.enter_context(SlowLinks(faults, Stamps(Path(told[0]))).entered())
            yield
            dist.barrier()  # the folder is rank 0's to remove, after all have done with it

    @contextmanager
    def step(self, number: int, chunks: Sequence[Any]) -> Iterator[None]:
        """Let this rank's faults act in one step of the model `chunks`."""
        self._stall_ns = sum(
            fault.duration_ns for fault in self._stalls if number % fault.every == 0
        )
        pause_ns = pauses_of(
            self._pauses, number, rank=self._rank, world_size=self._world_size, seed=self._seed
        )
        with ExitStack() as stack:
            if pause_ns:
                stack.enter_context(paused_layer(chunks[0], pause_ns))
            if self._compute is not None:
                stack.enter_context(slowed(self._compute))
            for fault in self._faults:
                if isinstance(fault, ImbalancedExperts):
                    stack.enter_context(imbalanced_experts(fault))
            yield

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same micro-batches; the step's first comes late where a stall is due."""
        stall_ns, self._stall_ns = self._stall_ns, 0
        if stall_ns:
            stall(stall_ns)
        yield from batches


@contextmanager
def slowed(compute: SlowCompute) -> Iterator[None]:
    """Slow down one step of Megatron's schedule."""
    with ExitStack() as stack:
        for phase, name in ((FORWARD, "forward_step"), (BACKWARD, "backward_step")):
            place = Replacement(SCHEDULE, name, None)
            function = in_phase(compute, phase, getattr(place.resolve_owner(), name))
            stack.enter_context(replaced(Replacement(SCHEDULE, name, function)))
        stack.enter_context(around_communication(compute.settle, compute.apart))
        stack.enter_context(compute.step())
        yield
