"""What `steptally trace` is asked, and the tally that answers: finds, measures, merges, names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steptally.cli.reading_progress import shown_progress
from steptally.cli.trace_groups import check_world, job_groups
from steptally.cli.trace_perfetto import draw
from steptally.cli.trace_save import TRACES, make_folder, save_tally
from steptally.errors import InputError
from steptally.job import Job, read_job
from steptally.job.catalog.devices import find_device
from steptally.measure.absent_effects import absent_effects
from steptally.measure.trace_account import TraceAccount, TraceOptions
from steptally.measure.trace_pool import Outcome, measure_sources
from steptally.measure.trace_tally import TraceMerge, rank_objects, trace_tally
from steptally.tally import Tally
from steptally.trace.kinds import load_rules
from steptally.trace.read import read_traces


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """The verb's arguments; `steps` is the first and last."""

    paths: Sequence[str]
    job: str | None = None
    overrides: Sequence[str] = ()
    steps: tuple[int, int] | None = None
    rank: int | None = None
    device: str | None = None
    rules: Path | None = None
    processes: int | None = None
    low_memory: bool = False
    save: Path | None = None
    perfetto: Path | None = None


def traced(request: TraceRequest) -> Tally:
    """The tally that the verb prints. Raises `InputError` for what cannot be used."""
    if request.overrides and request.job is None:
        raise InputError("--set is given without --job: it overrides a setting of a job; add one.")
    job = None if request.job is None else read_job(request.job, list(request.overrides))
    name = request.device or (job.cluster.device if job else None)
    device = find_device(name) if name else None
    if request.save is not None:
        make_folder(request.save / TRACES)
    merge, warnings = _measured(request, job)
    tally = trace_tally(
        merge,
        device=device,
        job=None if job is None else job.as_json(),
        world_size=None if job is None else job.layout.world_size,
        warnings=warnings,
    )
    if job is not None:
        tally = replace(tally, warnings=[*tally.warnings, *absent_effects(job, tally)])
    if request.save is not None:
        save_tally(tally, request.save)
    return tally


def trace_json(tally: Tally) -> dict[str, Any]:
    """The tally's own object with one key more: `ranks`, each rank's accounts together."""
    return {**tally.as_json(), "ranks": rank_objects(tally)}


def _measured(request: TraceRequest, job: Job | None) -> tuple[TraceMerge, list[str]]:
    """The accounts of all traces, merged, and what to say of those that could not be read."""
    sources = read_traces(request.paths, request.rank)
    options = TraceOptions(
        rules=load_rules(request.rules),
        low_memory=request.low_memory,
        save=None if request.save is None else request.save / TRACES,
        steps=request.steps,
        job=None if job is None else job_groups(job),
    )
    merge, warnings, ranks = TraceMerge(), [], dict[str, int]()
    with shown_progress(len(sources)) as show:
        for outcome in measure_sources(sources, options, request.processes):
            show(outcome.source)
            if outcome.account is None and len(sources) == 1:
                raise InputError(outcome.error)
            warnings += _taken(outcome, merge, len(sources))
            if outcome.account is not None:
                ranks[outcome.source.label] = outcome.account.rank
    if not merge.accounts:
        raise InputError(warnings[0])
    _check_ranks(merge.accounts)
    if job is not None:
        check_world(job, merge.accounts)
    if request.perfetto is not None:
        draw(request.perfetto, sources, ranks, options)
    return merge, sorted(warnings)


def _taken(outcome: Outcome, merge: TraceMerge, sources: int) -> list[str]:
    """Add an outcome to the merge; what to say of it."""
    if outcome.account is None:
        return [outcome.error]
    merge.add(outcome.account)
    if outcome.is_numbered and sources > 1:
        rank = outcome.account.rank
        return [f"{outcome.source.label} does not say its rank: it is shown as rank {rank}"]
    return []


def _check_ranks(accounts: Sequence[TraceAccount]) -> None:
    """Raises `InputError` where nothing was recorded, or traces turn out to be of one rank."""
    if all(account.times.recording is None for account in accounts):
        raise InputError(
            f"{accounts[0].source.source} holds no kernel, copy, operator or collective: there is "
            "no time to account for; record with ProfilerActivity.CPU and CUDA."
        )
    seen: dict[int, str] = {}
    for account in accounts:
        if account.rank in seen:
            raise InputError(
                f"{seen[account.rank]} and {account.source.source} are both of rank "
                f"{account.rank}: a rank can be there once; name one of them."
            )
        seen[account.rank] = account.source.source
