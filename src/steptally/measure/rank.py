"""All that one rank's trace tells: independent of every other rank, small, and picklable.

A job of thousands of ranks is this for each file, and `run.measure_run`'s merge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from steptally.measure.gemms import StepGemms, step_gemms
from steptally.measure.overlap import step_times
from steptally.measure.traffic import step_traffic
from steptally.tally import TimeRow, TrafficRow
from steptally.tally.ranges import number_ranges
from steptally.trace.kineto import read_kineto
from steptally.trace.schema import UNATTRIBUTED, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """One rank's recorded steps; traffic and products by step. `lost_events`: the file is damaged.

    `communicates` tells whether the rank ran any collective in them.
    """

    rank: int
    times: Sequence[TimeRow]
    gemms: Mapping[int, StepGemms]
    traffic: Mapping[int, Sequence[TrafficRow]]
    has_device: bool
    communicates: bool
    lost_events: bool
    warnings: Sequence[str]


def measure_rank(
    path: Path, rank: int | None = None, hosts: Mapping[int, str] | None = None
) -> RankAccount:
    """Read one rank's trace and account for each of its recorded steps.

    `hosts`, by rank, tell which groups lie within a node. Raises `InputError` where the file
    cannot be used.
    """
    trace = read_kineto(path, rank)
    times = step_times(trace)
    gemms = {step.step: step for step in step_gemms(trace)}
    return RankAccount(
        rank=trace.rank or 0,
        times=times,
        gemms=gemms,
        traffic=step_traffic(trace, hosts),
        has_device=trace.has_device,
        communicates=any(row.communication_ns for row in times),
        lost_events=bool(trace.losses),
        warnings=[*_trace_warnings(trace), *_uncounted(trace.source, gemms)],
    )


def _trace_warnings(trace: Trace) -> list[str]:
    warnings = [f"{trace.source}: {loss.sentence()}" for loss in trace.losses]
    warnings += trace.warnings
    events = trace.events
    if not events["kind"].is_in(["step"]).any():
        warnings.append(
            f"{trace.source} holds no step: annotate each with record_function("
            "'ProfilerStep#<n>'), which prof.step() and steptally.Recorder do"
        )
    lost = events.filter(
        pl.col("kind").is_in(("transfer", "communication")),
        pl.col("group") == UNATTRIBUTED,
        pl.col("step").is_not_null(),
    )
    if not lost.is_empty():
        warnings.append(f"{trace.source}: {_unattributed(trace, lost)}")
    transfers, waits = ((events["kind"] == kind).any() for kind in ("transfer", "wait"))
    if transfers and not waits:
        warnings.append(
            f"{trace.source} does not show waits: operators that wait for a collective count as "
            "compute; record with steptally.Recorder"
        )
    return warnings


def _unattributed(trace: Trace, lost: pl.DataFrame) -> str:
    time_ns = int((lost["end_ns"] - lost["start_ns"]).sum())
    steps = number_ranges(lost["step"].unique())
    if trace.collectives.is_empty():
        why = "the trace names no process groups; record with steptally.Recorder"
    else:
        why = "more than one group could have run them, or their issue was not recorded"
    return (
        f"{len(lost)} transfers of {time_ns / 1e6:.1f} ms in step {steps} belong to no process "
        f"group that can be told: {why}"
    )


def _uncounted(source: Path, gemms: Mapping[int, StepGemms]) -> list[str]:
    names: Counter[str] = Counter()
    for step in gemms.values():
        names.update(step.uncounted)
    return [
        f"{source}: the products inside {count} × {name} are not counted: the profiler did not "
        "record their shapes, or steptally does not know the operator"
        for name, count in sorted(names.items())
    ]
