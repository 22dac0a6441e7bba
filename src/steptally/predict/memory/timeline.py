"""What is allocated through a step, event by event: live intervals of one rank, and their peaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from steptally.job import Job
from steptally.predict.memory.schedule import Pass, passes, shortened
from steptally.predict.memory.stage import StageMemory, schedule_sizes

FIRST, LATER = "first", "later"


class Event(NamedTuple):
    """A pass, an optimizer step or a checkpoint save: bytes before, at most during, and after."""

    step: str
    name: str
    before: int
    peak: int
    after: int
    microbatch: int | None = None
    vpp: int | None = None


def timeline(job: Job, stage: StageMemory) -> list[Event]:
    """The first step, a later step and a checkpoint save of a rank of `stage`, in order.

    The first step runs before the optimizer has its state. Steps of more micro-batches than fill
    the pipeline twice are shortened: their middle repeats.
    """
    first = [*step_passes(job, stage, FIRST, stage.first_step_lasting)]
    later = [*step_passes(job, stage, LATER, stage.lasting)]
    return [
        *first,
        optimizer_event(stage, FIRST, stage.first_step_lasting),
        *later,
        optimizer_event(stage, LATER, stage.lasting),
        Event(LATER, "checkpoint", stage.lasting, stage.checkpoint_peak, stage.lasting),
    ]


def step_passes(job: Job, stage: StageMemory, step: str, lasting: int) -> Iterator[Event]:
    """Every pass of one step over `lasting` bytes."""
    sizes = schedule_sizes(job, len(stage.segments))
    held = 0
    for one in passes(shortened(sizes), stage.stage):
        event = pass_event(stage, one, step, lasting + held)
        held = event.after - lasting
        yield event


def pass_event(stage: StageMemory, one: Pass, step: str, before: int) -> Event:
    """One pass: forward adds what it saves, backward frees it."""
    part = stage.footprints[one.chunk]
    saved = int(part.saved)
    if one.forward:
        peak, after = before + int(part.forward_peak), before + saved
    else:
        peak, after = before - saved + int(part.backward_peak), before - saved
    name = "forward" if one.forward else "backward"
    return Event(step, name, before, peak, after, one.microbatch, one.chunk)


def optimizer_event(stage: StageMemory, step: str, before: int) -> Event:
    """The update, which makes its own state the first time."""
    peak = stage.lasting + stage.optimizer_temporary
    return Event(step, "optimizer", before, peak, stage.lasting)
