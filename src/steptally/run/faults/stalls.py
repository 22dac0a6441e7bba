"""Time in which a rank's main thread does nothing of its step: waiting for data, or paused.

Neither leaves an event of its own in a trace, as real ones do not: what shows is a gap.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from megatron.core.transformer.transformer_layer import BaseTransformerLayer

from steptally.run.faults.fault import Pause
from steptally.run.faults.slow_compute import spin


def stall(duration_ns: int) -> None:
    """Block as a read does: the core and Python's lock are free for others."""
    time.sleep(duration_ns / 1e9)


def pauses_of(pauses: Sequence[Pause], step: int, *, rank: int, world_size: int, seed: int) -> int:
    """How long this rank pauses in a step (counted from 1), in ns.

    Where a pause is of any rank, every rank draws the same one from the seed and the step.
    """
    due = [pause for pause in pauses if step % pause.every == 0]
    drawn = random.Random(f"{seed} {step}").randrange(world_size)
    return sum(
        pause.duration_ns for pause in due if rank == (drawn if pause.rank is None else pause.rank)
    )


@contextmanager
def paused_layer(chunk: Any, duration_ns: int) -> Iterator[None]:
    """Hold the main thread once, ahead of the middle layer of a chunk's first forward.

    As Python's garbage collector does, it keeps the core and Python's lock.
    """
    layers = [module for module in chunk.modules() if isinstance(module, BaseTransformerLayer)]
    left = [duration_ns]

    def pause(*_: Any) -> None:
        if left:
            spin(left.pop())

    hook = (layers[len(layers) // 2] if layers else chunk).register_forward_pre_hook(pause)
    try:
        yield
    finally:
        hook.remove()
