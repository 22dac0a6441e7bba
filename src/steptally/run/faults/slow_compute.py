"""Makes a rank's compute take longer, in proportion to what it takes by itself.

While a step runs, a clock measures this rank's own operators, and what they are to take beyond
that is a debt, which the rank pays by waiting in the operator `steptally::injected_delay`. The
operator is an interval of this rank's compute in a trace, leaves the core to the other ranks,
and multiplies no matrix, so FLOPs stay what they were.

* Outside backward a `TorchFunctionMode` sees each function that Python calls, and nothing else:
  the time between two operators (Python's own) is not stretched. A debt is paid behind the operator
  that it comes from, once it is large enough to be told from the operator's own overhead.
* In backward the operators run back to back inside autograd's engine, where Python sees none of
  them. Time on the clock counts, without that in collectives and in waits for them.

Debts are paid before a collective is issued or waited for, so that a slow rank is late there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from steptally.run.faults.fault import BACKWARD, FORWARD

DELAY_OPERATOR = "steptally::injected_delay"
# The optimizer, and what else a step does outside of forward and backward.
OUTSIDE = "outside"
# A sleep ends late (by Linux's timer slack of 0.05 ms, at least): a debt below this waits for more.
_SMALLEST_DEBT_NS = 100_000


def hold(duration_ns: int) -> None:
    """Hold this thread for about so long, and leave the core to the other ranks of the machine.

    A slow device takes nothing from its peers.
    """
    time.sleep(duration_ns / 1e9)


def spin(duration_ns: int) -> None:
    """Hold this thread, and Python's lock, for so long."""
    end = time.perf_counter_ns() + duration_ns
    while time.perf_counter_ns() < end:
        pass


class SlowCompute(TorchFunctionMode):
    """Entered once for the life of a rank; slows it down while `running`.

    `extra` is, for each phase, what compute takes beyond its own time, as a share of that: 0.5 for
    1.5 times. It must be entered before the CPU shim's own mode, so as to see operators alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.extra: Mapping[str, float] = {}
        self._library = torch.library.Library("steptally", "FRAGMENT")
        self._library.define("injected_delay(int duration_ns) -> ()")
        self._library.impl("injected_delay", hold, "CompositeExplicitAutograd")
        self._delay = torch.ops.steptally.injected_delay.default
        self._running = False
        self._phase = OUTSIDE
        self._debt_ns = 0.0
        self._apart_ns = 0  # spent so far in communication and in paying
        self._mark_ns, self._mark_apart_ns = 0, 0  # backward: what is accounted for

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function of torch; outside of backward, on the clock."""
        kwargs = kwargs or {}
        extra = self.extra.get(self._phase)
        if not (self._running and extra) or self._phase == BACKWARD:
            return func(*args, **kwargs)
        began, apart = time.perf_counter_ns(), self._apart_ns
        result = func(*args, **kwargs)
        own_ns = time.perf_counter_ns() - began - (self._apart_ns - apart)
        self._debt_ns += extra * own_ns
        if self._debt_ns > _SMALLEST_DEBT_NS:
            self._pay()
        return result

    @contextmanager
    def step(self) -> Iterator[None]:
        """Slow down what runs inside."""
        self._running, self._debt_ns, self._phase = True, 0.0, OUTSIDE
        try:
            yield
            self.settle()
        finally:
            self._running = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is forward or backward of a micro-batch."""
        before = self._phase
        self.settle()
        self._phase = name
        self._mark()
        try:
            yield
            self.settle()
        finally:
            self._phase = before

    def settle(self) -> None:
        """Pay what is owed up to now: before communication, and where a phase ends."""
        if not self._running:
            return
        if self._phase == BACKWARD:
            own_ns = time.perf_counter_ns() - self._mark_ns - (self._apart_ns - self._mark_apart_ns)
            self._debt_ns += self.extra.get(BACKWARD, 0.0) * own_ns
        if self._debt_ns > _SMALLEST_DEBT_NS:
            self._pay()
        self._mark()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What runs inside is communication: it is neither this rank's compute nor slowed down."""
        began, apart = time.perf_counter_ns(), self._apart_ns
        try:
            yield
        finally:
            self._apart_ns = apart + time.perf_counter_ns() - began

    def _mark(self) -> None:
        self._mark_ns, self._mark_apart_ns = time.perf_counter_ns(), self._apart_ns

    def _pay(self) -> None:
        """Wait for the debt; what the operator took on top of that is owed less the next time."""
        began = time.perf_counter_ns()
        self._delay(round(self._debt_ns))
        paid_ns = time.perf_counter_ns() - began
        self._debt_ns -= paid_ns
        self._apart_ns += paid_ns


def extra_of(phases_and_factors: list[tuple[str | None, float]]) -> dict[str, float]:
    """The share of extra time for each phase; faults of one rank multiply.

    >>> extra_of([(None, 2.0), ("backward", 1.5)])
    {'forward': 1.0, 'backward': 2.0, 'outside': 1.0}
    """
    factors = dict.fromkeys((FORWARD, BACKWARD, OUTSIDE), 1.0)
    for phase, factor in phases_and_factors:
        for name in factors if phase is None else (phase,):
            factors[name] *= factor
    return {name: factor - 1 for name, factor in factors.items()}


# How Megatron's schedules call the two, as names of their module.
SCHEDULE = "megatron.core.pipeline_parallel.schedules"


def in_phase(compute: SlowCompute, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's `forward_step` or `backward_step`, told to the clock as that phase."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with compute.phase(name):
            return function(*args, **kwargs)

    return run
