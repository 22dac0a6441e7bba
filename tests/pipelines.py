"""Op tables of pipelines that never ran, simulated plainly: 1F1B with messages and gradients.

An oracle for the replay, written without it: each rank is a list of things to do, and time passes
event by event. Faults are put in by name, so that a verdict can be held against the truth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

MILLISECOND = 1_000_000
Duration = Callable[[int, int, int, int], float]  # (step, dp, stage, micro-batch) -> a factor


def always(_step: int, _dp: int, _stage: int, _microbatch: int) -> float:
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A job of `dp` × `pp` ranks, and what is wrong with it.

    `forward` and `backward` multiply a pass's time, `stall_ns` delays a rank's first pass of a
    step, `link` multiplies the transfer of messages from a stage of a replica.
    """

    dp: int = 2
    pp: int = 2
    steps: int = 6
    microbatches: int = 4
    forward_ns: int = 20 * MILLISECOND
    backward_ns: int = 40 * MILLISECOND
    message_ns: int = MILLISECOND
    gradients_ns: int = 5 * MILLISECOND
    optimizer_ns: int = 4 * MILLISECOND
    noise: float = 0.01
    seed: int = 0
    forward: Duration = always
    backward: Duration = always
    stall_ns: Mapping[tuple[int, int, int], int] = field(default_factory=dict)  # step, dp, stage
    link: Mapping[tuple[int, int], float] = field(default_factory=dict)  # dp, stage of the sender
    gradients: Mapping[int, float] = field(default_factory=dict)  # stage


def op_table(pipeline: Pipeline) -> pl.DataFrame:
    """The table that a recorder would have written, times in nanoseconds."""
    rows: list[tuple[object, ...]] = []
    clock = 0
    noise = random.Random(pipeline.seed)
    for step in range(pipeline.steps):
        clock = _step(pipeline, step, clock, noise, rows)
    columns = ["rank", "dp_rank", "stage", "step", "optype", "mb_id", "start_ns", "end_ns"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The passes of a stage in order: warm-up, one forward one backward, cool-down.

    >>> one_f_one_b(0, 2, 2)
    [('forward', 0), ('forward', 1), ('backward', 0), ('backward', 1)]
    """
    warmup = min(stages - stage - 1, microbatches)
    order = [("forward", i) for i in range(warmup)]
    for i in range(microbatches - warmup):
        order += [("forward", warmup + i), ("backward", i)]
    return order + [("backward", i) for i in range(microbatches - warmup, microbatches)]


def _step(
    pipeline: Pipeline, step: int, clock: int, noise: random.Random, rows: list[tuple[object, ...]]
) -> int:
    """One step of all replicas; when its last rank is done."""
    ends = {}
    for dp in range(pipeline.dp):
        ends |= _passes(pipeline, step, dp, clock, noise, rows)
    done = {}
    for stage in range(pipeline.pp):
        last = max(ends[dp, stage] for dp in range(pipeline.dp))
        took = pipeline.gradients_ns * pipeline.gradients.get(stage, 1.0) * _jitter(pipeline, noise)
        for dp in range(pipeline.dp):
            done[dp, stage] = last + round(took)
            start = ends[dp, stage]
            rows.append(
                _row(pipeline, dp, stage, step, "grads-reduce-scatter", -1, start, done[dp, stage])
            )
    clipped = max(done.values()) + MILLISECOND
    for (dp, stage), start in done.items():
        rows.append(_row(pipeline, dp, stage, step, "optimizer-clip-main-grad", -1, start, clipped))
        end = clipped + pipeline.optimizer_ns
        rows.append(_row(pipeline, dp, stage, step, "optimizer", -1, clipped, end))
    return clipped + pipeline.optimizer_ns


def _passes(
    pipeline: Pipeline,
    step: int,
    dp: int,
    clock: int,
    noise: random.Random,
    rows: list[tuple[object, ...]],
) -> dict[tuple[int, int], int]:
    """One replica's passes and messages; when each of its stages is done with them.

    A receive is posted when the rank is free for it and done when the message is; a send does not
    hold its rank up.
    """
    stages = range(pipeline.pp)
    todo = {stage: one_f_one_b(stage, pipeline.pp, pipeline.microbatches) for stage in stages}
    free = dict.fromkeys(stages, clock)
    sent: dict[tuple[str, int, int], int] = {}  # (phase, sending stage, micro-batch) -> when issued
    first = dict.fromkeys(stages, True)
    while any(todo.values()):
        for stage in stages:
            while todo[stage]:
                phase, batch = todo[stage][0]
                up = phase == "forward"
                source, target = (stage - 1, stage + 1) if up else (stage + 1, stage - 1)
                if source in stages and (phase, source, batch) not in sent:
                    break
                todo[stage].pop(0)
                start = free[stage]
                if source in stages:
                    issued = sent[phase, source, batch]
                    factor = pipeline.link.get((dp, source), 1.0)
                    took = round(pipeline.message_ns * factor * _jitter(pipeline, noise))
                    end = max(issued, start) + took
                    rows.append(_row(pipeline, dp, source, step, f"{phase}-send", -1, issued, end))
                    rows.append(_row(pipeline, dp, stage, step, f"{phase}-recv", -1, start, end))
                    start = end
                if first[stage]:
                    start += pipeline.stall_ns.get((step, dp, stage), 0)
                    first[stage] = False
                length = pipeline.forward_ns if up else pipeline.backward_ns
                factor = (pipeline.forward if up else pipeline.backward)(step, dp, stage, batch)
                end = start + round(length * factor * _jitter(pipeline, noise))
                rows.append(_row(pipeline, dp, stage, step, f"{phase}-compute", batch, start, end))
                free[stage] = end
                if target in stages:
                    sent[phase, stage, batch] = end
    return {(dp, stage): free[stage] for stage in stages}


def _jitter(pipeline: Pipeline, noise: random.Random) -> float:
    return max(0.5, noise.gauss(1.0, pipeline.noise)) if pipeline.noise else 1.0


def _row(
    pipeline: Pipeline, dp: int, stage: int, step: int, name: str, batch: int, start: int, end: int
) -> tuple[object, ...]:
    return (dp * pipeline.pp + stage, dp, stage, step, name, batch, start, end)
