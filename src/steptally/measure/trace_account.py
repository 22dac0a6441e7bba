"""All that one trace tells: independent of every other, small, and picklable.

A job of thousands of ranks is this for each trace (`trace_pool`), and the merge of `trace_tally`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from steptally.measure.contention import Contention, contention
from steptally.measure.device_times import RecordedTimes, device_times
from steptally.measure.device_trust import device_trust
from steptally.measure.device_work import device_work, host_launches, with_steps
from steptally.measure.fusion import fusion_rows
from steptally.measure.gap_account import gap_row
from steptally.measure.group_axes import GroupFacts, JobGroups, name_groups, with_axes
from steptally.measure.host_times import host_times, no_such_steps
from steptally.measure.kernel_shapes import kernel_shapes
from steptally.measure.kernels import family_rows, kernel_rows, with_families
from steptally.measure.operands import operand_sizes
from steptally.measure.step_finding import FoundSteps, find_steps
from steptally.measure.trust import file_trust
from steptally.tally import (
    FamilyRow,
    FusionRow,
    GapRow,
    KernelRow,
    SourceRow,
    TimeRow,
    TrustRow,
)
from steptally.tally.ranges import number_ranges
from steptally.trace.kinds import Rules
from steptally.trace.schema import UNATTRIBUTED, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How traces are read and accounted for.

    `steps` (first, last) restricts to these, both included; `low_memory` reads no operators, so
    that no shapes are known; `save` is a folder to keep each trace in as a parquet table.
    """

    rules: Rules
    low_memory: bool = False
    save: Path | None = None
    steps: tuple[int, int] | None = None
    job: JobGroups | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAccount:
    """One rank's accounts; those of a device are empty for a rank without one."""

    rank: int
    source: SourceRow
    times: RecordedTimes
    groups: Mapping[str, GroupFacts] = field(default_factory=dict)
    gaps: GapRow | None = None
    kernels: tuple[KernelRow, ...] = ()
    families: tuple[FamilyRow, ...] = ()
    fusion: tuple[FusionRow, ...] = ()
    contention: Contention = field(default_factory=Contention)
    trust: tuple[TrustRow, ...] = ()
    warnings: tuple[str, ...] = ()  # without the rank, so that equal ones of ranks are one


def account_for_trace(trace: Trace, rank: int, options: TraceOptions) -> TraceAccount:
    """Measure one trace as rank `rank`.

    Raises `InputError` where it has none of the steps that `options` choose.
    """
    trace, facts = name_groups(trace, options.job)
    account = (_of_device if trace.has_device else _of_host)(trace, rank, options)
    return replace(
        account,
        times=_with_axes(account.times, facts),
        groups=facts,
        warnings=(*account.warnings, *trace.warnings, *_unattributed(trace)),
    )


def _of_device(trace: Trace, rank: int, options: TraceOptions) -> TraceAccount:
    launches = host_launches(trace.events)
    work = device_work(trace.events, launches)
    found = find_steps(trace.events, work)
    every = with_steps(work, found)
    work = _selected(every, found, trace.source, options.steps)
    if len(work) < len(every):  # what other steps launched is not lost
        others = every.join(work.select("event"), on="event", how="anti").select("correlation")
        launches = launches.join(others.drop_nulls(), on="correlation", how="anti")
    times = device_times(work, found, rank)
    work = with_families(work, options.rules)
    sizes = operand_sizes(trace, work)
    shaped = work.hstack(kernel_shapes(trace, work, work["family"])).hstack(sizes)
    gaps = gap_row(work, trace.events, launches, rank)
    return TraceAccount(
        rank=rank,
        source=_source(trace, rank, len(work), found.origin),
        times=times,
        gaps=gaps,
        kernels=tuple(kernel_rows(shaped, rank)),
        families=tuple(family_rows(work, rank)),
        fusion=tuple(fusion_rows(shaped, rank)),
        contention=contention(shaped, rank),
        trust=(
            *file_trust(trace, rank),
            *device_trust(work, launches, times.recording, gaps, found, rank),
        ),
        warnings=tuple(_about_steps(found, times, options)),
    )


def _of_host(trace: Trace, rank: int, options: TraceOptions) -> TraceAccount:
    """A rank that trains on a CPU: operators and gloo's transfers (`overlap.host_activity`)."""
    times = host_times(trace, rank, options.steps)
    steps = "ProfilerStep annotations" if times.steps else "none"
    warnings: tuple[str, ...] = ()
    if times.recording is None:
        warnings = ("no work was recorded that can be accounted for",)
    return TraceAccount(
        rank=rank,
        source=_source(trace, rank, 0, steps),
        times=times,
        trust=tuple(file_trust(trace, rank)),
        warnings=warnings,
    )


def _selected(
    work: pl.DataFrame, found: FoundSteps, source: Path, steps: tuple[int, int] | None
) -> pl.DataFrame:
    """The work of the chosen steps, or all; `InputError` where the recording has none of them."""
    if steps is None:
        return work
    chosen = work.filter(pl.col("step").is_between(*steps))
    if chosen.is_empty():
        raise no_such_steps(source, steps, found.windows["step"])
    return chosen


def _about_steps(found: FoundSteps, times: RecordedTimes, options: TraceOptions) -> list[str]:
    """What to say of the steps: how sure they are, and which are annotated and launched nothing."""
    if found.is_period:
        unsure = (
            f"nothing annotates steps; shown as such is {found.origin}: whether that is a step, a "
            "micro-batch or a layer, the trace does not tell"
        )
        return [unsure]
    if options.steps is not None:
        return []
    missing = set(found.windows["step"].to_list()) - {row.step for row in times.steps}
    if not missing:
        return []
    return [f"step {number_ranges(missing)} launched no work on the device: it is left out"]


def _source(trace: Trace, rank: int, device_events: int, steps: str) -> SourceRow:
    return SourceRow(
        rank=rank,
        source=str(trace.source),
        size_bytes=trace.source.stat().st_size if trace.source.exists() else 0,
        events=len(trace.events),
        device_events=device_events,
        steps=steps,
        device=trace.device,
        process=trace.process,
        world_size=trace.world_size,
    )


def _with_axes(times: RecordedTimes, facts: Mapping[str, GroupFacts]) -> RecordedTimes:
    if not facts:
        return times

    def known(rows: tuple[TimeRow, ...]) -> tuple[TimeRow, ...]:
        return tuple(with_axes(row, facts) for row in rows)

    recording = None if times.recording is None else with_axes(times.recording, facts)
    return RecordedTimes(
        recording=recording, steps=known(times.steps), partial=known(times.partial)
    )


def _unattributed(trace: Trace) -> list[str]:
    communicates = trace.events["kind"].is_in(("communication", "transfer"))
    lost = int((trace.events["group"].filter(communicates) == UNATTRIBUTED).sum())
    if not lost:
        return []
    if trace.collectives.is_empty():
        why = "the trace names no process groups (newer versions of PyTorch write them)"
    else:
        why = "their events carry no group, and nothing else tells it"
    return [f"{lost:,} collectives are unattributed: {why}"]
