"""Makes communication take longer where it takes its time: inside gloo.

A host that sleeps before it enters a collective is a slow rank, not a slow link. Here every member
enters on time and leaves late.

* A collective runs on a thread of gloo. When its data is there, gloo completes the future of the
  work, runs what hangs on the future, and only then ends the `gloo:…` interval of the profiler and
  lets those go who wait. The delay hangs on the future, so it lengthens that interval itself.
* A message (`send`, `recv`) is ended by the wait for it, on the thread that waits. There the delay
  comes at the beginning of the wait, inside the interval that was opened when it was issued: a
  message is not there before `duration_ns` have passed since both its ends were.

When a transfer began is known from stamps that the ranks leave each other in a file: they are of
one host, and its monotonic clock is the same for all processes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch.distributed as dist

from steptally.errors import RunError
from steptally.run.faults.communication import COLLECTIVES, MESSAGES, Call, replaced_methods
from steptally.run.faults.fault import SlowLink
from steptally.run.faults.slow_compute import spin
from steptally.run.faults.stamps import Stamps, Transfer

# Megatron-Core's `group_desc` (parallel_state.py, megatron-core 0.16.1) of the groups of each axis.
GROUPS_OF_AXIS = {
    "tp": ("TENSOR_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_PARALLEL_GROUP"),
    "cp": ("CONTEXT_PARALLEL_GROUP",),
    "ep": ("EXPERT_MODEL_PARALLEL_GROUP",),
    "dp": (
        *("DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP", "EXPERT_DATA_PARALLEL_GROUP"),
        *("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP"),
        *("INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP"),
    ),
    "pp": ("PIPELINE_MODEL_PARALLEL_GROUP", "EMBEDDING_GROUP", "POSITION_EMBEDDING_GROUP"),
}
_POLL_S = 0.0001
_WAKING_NS = 150_000  # how late at the most, where the machine is not overloaded


class SlowLinks:
    """The slow links of one rank; every rank of the job must have them, with shared `stamps`.

    Entered for the life of the rank, under whatever the recorder puts on top while it traces.
    """

    def __init__(self, faults: Sequence[SlowLink], stamps: Stamps) -> None:
        self._faults = faults
        self._stamps = stamps
        self._holds: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
        self._delayed_until_ns: dict[int, int] = {}  # by thread of gloo: the end of its last delay

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Slow the links down until the block ends. torch.distributed must be initialised."""
        collectives = [(dist.ProcessGroup, name) for name in COLLECTIVES]
        with ExitStack() as stack:
            stack.enter_context(replaced_methods(collectives, self._slow_collective))
            for name in MESSAGES:
                method = [(dist.ProcessGroup, name)]
                stack.enter_context(replaced_methods(method, self._slow_message))
            waits: list[tuple[type, str]] = [(dist.Work, "wait"), (dist.Work, "synchronize")]
            stack.enter_context(replaced_methods(waits, self._holding))
            yield

    def _slow_collective(self, function: Call) -> Call:
        def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
            found = [fault for fault in self._faults if _joins(fault, group)]
            if not found:
                return function(group, *args, **kwargs)
            transfer = self._stamps.come(f"group{group.group_name}", group.size(), group.rank())
            work = function(group, *args, **kwargs)
            self._delay_completion(work, found, transfer, group.group_desc)
            return work

        return collective

    def _delay_completion(
        self, work: Any, faults: Sequence[SlowLink], transfer: Transfer, name: str
    ) -> None:
        issuing = threading.get_ident()
        too_late: list[int] = []

        def delay(_: Any) -> None:
            thread = threading.get_ident()
            now_ns = time.perf_counter_ns()
            # While its thread was still at the transfer before it, this one had not begun.
            began_ns = max(transfer.last_came_ns(), self._delayed_until_ns.get(thread, 0))
            own_ns = max(0, now_ns - began_ns)
            end_ns = now_ns + round(sum(_extra_ns(fault, own_ns) for fault in faults))
            if thread == issuing:
                too_late.append(end_ns)
                return
            _sleep_until(end_ns)
            self._delayed_until_ns[thread] = time.perf_counter_ns()

        try:
            future = work.get_future()
        except RuntimeError as error:
            raise RunError(
                f"--inject {faults[0].spec} met a collective of group {name} on whose end gloo "
                f"gives no hold ({error}): slow another link, or inject no slow-link."
            ) from error
        future.then(delay)
        if too_late:  # this thread lost its core, and the collective was over before: hold the wait
            self._holds[work] = partial(_sleep_until, too_late[0])

    def _slow_message(self, function: Call) -> Call:
        sends = function.__name__ == "send"

        def message(group: Any, tensors: Any, peer: int, *args: Any, **kwargs: Any) -> Any:
            here, there = dist.get_rank(), dist.get_global_rank(group, peer)
            faults = [fault for fault in self._faults if _carries(fault, here, there)]
            if not faults:
                return function(group, tensors, peer, *args, **kwargs)
            source, destination = (here, there) if sends else (there, here)
            name = f"group{group.group_name}-from{source}-to{destination}"
            work = function(group, tensors, peer, *args, **kwargs)
            transfer = self._stamps.come(name, 2, 0 if sends else 1)
            duration_ns = sum(fault.duration_ns or 0 for fault in faults)
            self._holds[work] = partial(_hold, transfer, duration_ns)
            return work

        return message

    def _holding(self, function: Call) -> Call:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            hold = self._holds.pop(work, None)
            if hold is not None:
                hold()
            return function(work, *args, **kwargs)

        return wait


def _hold(transfer: Transfer, duration_ns: int) -> None:
    """Sleep until `duration_ns` have passed since both ends of a message came."""
    while not transfer.all_came():
        time.sleep(_POLL_S)
    _sleep_until(transfer.last_came_ns() + duration_ns)


def _sleep_until(end_ns: int) -> None:
    """Sleep for the most part and spin for the rest: a thread that sleeps wakes up late."""
    time.sleep(max(0, end_ns - _WAKING_NS - time.perf_counter_ns()) / 1e9)
    spin(max(0, end_ns - time.perf_counter_ns()))


def _extra_ns(fault: SlowLink, own_ns: int) -> float:
    if fault.factor is not None:
        return (fault.factor - 1) * own_ns
    return fault.duration_ns or 0


def _joins(fault: SlowLink, group: Any) -> bool:
    """Whether the collectives of a group run over this link."""
    if group.size() == 1:
        return False
    if fault.ranks is not None:
        return sorted(dist.get_process_group_ranks(group)) == sorted(fault.ranks)
    return group.group_desc in GROUPS_OF_AXIS[str(fault.axis)]


def _carries(fault: SlowLink, here: int, there: int) -> bool:
    """Whether a message runs over this link: all that Megatron-Core sends on CPU is pipeline's."""
    if fault.ranks is not None:
        return sorted((here, there)) == sorted(fault.ranks)
    return fault.axis == "pp"
