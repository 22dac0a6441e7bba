"""What one rank's recording tells the search for stragglers: small, and independent of the others.

    recording = extract(read_kineto(path), rank=3, options=ExtractOptions())

A device's collectives are its communication kernels; a CPU rank's are what it hands to gloo. Steps
are those that `steptally trace` finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import polars as pl

from steptally.errors import InputError
from steptally.measure.device_work import device_work, host_launches, with_steps
from steptally.measure.group_axes import JobGroups, name_groups
from steptally.measure.host_times import no_such_steps
from steptally.measure.overlap import host_activity
from steptally.measure.step_finding import find_steps
from steptally.measure.stragglers.device_communications import device_communications
from steptally.measure.stragglers.host_communications import host_communications
from steptally.measure.stragglers.marks import backward_runs, model_begins
from steptally.measure.stragglers.places import group_coordinates
from steptally.measure.stragglers.recording import STEPS, RankRecording
from steptally.measure.stragglers.untimed import without_untimed
from steptally.measure.trace_pool import each_source
from steptally.trace.intervals import Intervals, merge
from steptally.trace.kinds import Rules, load_rules
from steptally.trace.read import TraceSource
from steptally.trace.schema import Trace
from steptally.trace.steps import step_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """How recordings are read. `steps` (first, last) restricts to these; `job` names groups."""

    rules: Rules = field(default_factory=load_rules)
    steps: tuple[int, int] | None = None
    job: JobGroups | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """One source's recording, or why there is none; `is_numbered` where nothing told its rank."""

    source: TraceSource
    recording: RankRecording | None = None
    error: str = ""
    is_numbered: bool = False


def extract(trace: Trace, rank: int, options: ExtractOptions) -> RankRecording:
    """The recording of `trace` as rank `rank`; its coordinates as far as its groups tell them.

    Raises `InputError` where it has none of the steps that `options` choose.
    """
    events, untimed = without_untimed(trace)
    trace, facts = name_groups(events, options.job)
    lost = [f"{untimed:,} records without a time (start and end 0) are dropped"] if untimed else []
    lost += [loss.sentence() for loss in trace.losses]
    if trace.has_device:
        launches = host_launches(trace.events)
        work = device_work(trace.events, launches)
        found = find_steps(trace.events, work)
        work = with_steps(work, found)
        rows = device_communications(work, trace.collectives, facts)
        steps = _device_steps(work, found.windows["step"].to_list())
        compute = _merged(work)
    else:
        rows, without_end = host_communications(trace, facts)
        lost += without_end
        steps = step_windows(trace.events).select(*STEPS)
        compute = host_activity(trace.events).compute
        work = None
    rows, steps = _in_steps(trace, rows, steps, compute, options.steps)
    return RankRecording(
        rank=rank,
        source=str(trace.source),
        communications=rows,
        steps=steps,
        compute=compute,
        backward=backward_runs(trace, work),
        model_begins=model_begins(trace, steps, work),
        world_size=trace.world_size,
        coordinates=group_coordinates(trace, rank),
        lost=tuple(lost),
        warnings=tuple(trace.warnings),
    )


def extract_source(source: TraceSource, number: int, options: ExtractOptions) -> Extracted:
    """Read and extract one source; where nothing tells its rank, it is rank `number`."""
    try:
        trace = source.read(options.rules, low_memory=True)
        told = trace.rank if source.rank is None else source.rank
        recording = extract(trace, number if told is None else told, options)
    except InputError as error:
        return Extracted(source=source, error=str(error))
    return Extracted(source=source, recording=recording, is_numbered=told is None)


def extract_sources(
    sources: Sequence[TraceSource], options: ExtractOptions, processes: int | None = None
) -> Iterator[Extracted]:
    """Every source's recording as it is ready, in any order; as `trace_pool.measure_sources`."""
    return each_source(sources, partial(extract_source, options=options), processes)


def _device_steps(work: pl.DataFrame, order: Sequence[int]) -> pl.DataFrame:
    """Each step from the first start to the last end of the work that was launched in it."""
    timed = work.filter((pl.col("end_ns") > pl.col("start_ns")) & pl.col("step").is_not_null())
    spans = timed.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return spans.filter(pl.col("step").is_in(order)).sort("start_ns").select(*STEPS)


def _in_steps(
    trace: Trace,
    rows: pl.DataFrame,
    steps: pl.DataFrame,
    compute: Intervals,
    chosen: tuple[int, int] | None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Collectives and steps of the chosen steps; of all as step 0 where there are none to choose.

    Collectives of no step are kept: clocks are compared by them too.
    """
    if steps.is_empty():
        if chosen is not None:
            raise no_such_steps(trace.source, chosen, [])
        return rows.with_columns(step=pl.lit(0, pl.Int64)), _whole(rows, compute)
    if chosen is None:
        return rows, steps
    own = steps.filter(pl.col("step").is_between(*chosen))
    if own.is_empty():
        raise no_such_steps(trace.source, chosen, steps["step"])
    inside = pl.col("step").is_null() | pl.col("step").is_in(own["step"].implode())
    return rows.filter(inside), own


def _whole(rows: pl.DataFrame, compute: Intervals) -> pl.DataFrame:
    """The whole recording as one step."""
    edges = [*compute[:1, 0].tolist(), *compute[-1:, 1].tolist()]
    edges += [*rows["enter_ns"].to_list(), *rows["leave_ns"].to_list()]
    if not edges:
        return pl.DataFrame(schema=dict(STEPS))
    whole = {"step": [0], "start_ns": [min(edges)], "end_ns": [max(edges)]}
    return pl.DataFrame(whole, schema=dict(STEPS))


def _merged(work: pl.DataFrame) -> Intervals:
    computing = work.filter(pl.col("kind") == "compute")
    return merge(computing["start_ns"].to_numpy(), computing["end_ns"].to_numpy())
