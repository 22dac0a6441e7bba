"""What `steptally stragglers` is asked: finds out what the paths are, and searches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from steptally.cli.reading_progress import shown_progress
from steptally.cli.straggler_places import job_places
from steptally.cli.stragglers_beside import check_side_files, with_side_files
from steptally.cli.trace_groups import job_groups
from steptally.cli.trace_save import make_folder, save_tally
from steptally.errors import InputError
from steptally.job import Job, read_job
from steptally.measure.run import injected_warning
from steptally.measure.stragglers.extract import ExtractOptions, extract_sources
from steptally.measure.stragglers.found_tally import straggler_tally
from steptally.measure.stragglers.op_tables import is_pipeline_table
from steptally.measure.stragglers.places import placed, places_beside
from steptally.measure.stragglers.recording import RankRecording
from steptally.measure.stragglers.search import (
    Found,
    search_logs,
    search_recordings,
    search_tables,
    with_iteration_times,
)
from steptally.tally import Tally
from steptally.trace.kinds import load_rules
from steptally.trace.read import read_traces, trace_files
from steptally.trace.recognise import recognise
from steptally.trace.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglersRequest:
    """The verb's arguments; `steps` is the first and last, `beside` are side files."""

    paths: Sequence[str]
    job: str | None = None
    overrides: Sequence[str] = ()
    steps: tuple[int, int] | None = None
    beside: Sequence[str] = ()
    rules: Path | None = None
    processes: int | None = None
    save: Path | None = None


def search(request: StragglersRequest) -> tuple[Tally, Found]:
    """What is found, and the tally of it. Raises `InputError` for what cannot be used."""
    if request.overrides and request.job is None:
        raise InputError("--set is given without --job: it overrides a setting of a job; add one.")
    check_side_files(request.beside)
    job = None if request.job is None else read_job(request.job, list(request.overrides))
    run = _run_directory(request.paths)
    warnings: list[str] = []
    if tables := _op_tables(request.paths):
        found = search_tables(tables, request.steps)
        if job is not None:
            _check_table(job, found)
    elif logs := _logs(request.paths):
        if request.steps is not None:
            raise InputError(
                f"--steps is given for {logs[0]}: it chooses from steps that are recorded "
                "operation by operation, in traces and op tables; leave it out."
            )
        found = search_logs(logs, {} if job is None else _coordinates(job))
    else:
        recordings, warnings = _recordings(request, job)
        found = search_recordings(recordings)
    if run is not None:
        found = with_iteration_times(found, run)
    if request.beside:
        found = with_side_files(found, request.beside, run)
    tally = straggler_tally(found, None if job is None else job.as_json(), warnings)
    if run is not None:
        tally = of_run(tally, run)
    if request.save is not None:
        make_folder(request.save)
        save_tally(tally, request.save)
    return tally, found


def of_run(tally: Tally, run: RunDirectory) -> Tally:
    """The tally with the run's own job, and the faults that were injected into it."""
    manifest = run.read_manifest()
    injected = [row["spec"] for row in manifest.get("injected") or ()]
    own = manifest.get("job")
    return replace(
        tally,
        job=tally.job or (own if isinstance(own, dict) else {}),
        injected=injected,
        warnings=[*tally.warnings, *injected_warning(injected)],
    )


def _run_directory(paths: Sequence[str]) -> RunDirectory | None:
    """The one run directory that is asked for, or None."""
    run = RunDirectory(Path(paths[0]))
    return run if len(paths) == 1 and run.manifest.is_file() else None


def _logs(paths: Sequence[str]) -> list[Path]:
    """The paths, where they are files and none is a recording."""
    files = [Path(path) for path in paths]
    texts = [file for file in files if file.is_file() and _is_text(file)]
    if texts and len(texts) < len(files):
        raise InputError(
            f"{texts[0]} is no recording and {next(f for f in files if f not in texts)} is one: "
            "name logs and tables of phases, or traces, not both; what was recorded beside traces "
            "goes with --beside."
        )
    return texts


def _is_text(file: Path) -> bool:
    """Whether a file is neither a trace nor packed; damaged ones are for their readers."""
    packed = file.suffix in (".gz", ".sqlite", ".parquet", ".nsys-rep", ".qdrep")
    return not packed and recognise(file) is None and file.suffix != ".json"


def _op_tables(paths: Sequence[str]) -> list[tuple[Path, pl.DataFrame]]:
    """The op tables among the paths. Raises `InputError` where other files stand beside them."""
    found = {file.resolve(): file for given in paths for file in trace_files(Path(given))}
    tables = {
        file: table
        for file in found.values()
        if file.suffix == ".parquet"
        and file.is_file()
        and (table := _pipeline_table(file)) is not None
    }
    others = [file for file in found.values() if file not in tables]
    if tables and others:
        raise InputError(
            f"{next(iter(tables))} is a pipeline's op table and {others[0]} is not: they have no "
            "clock or program in common; name one kind at a time."
        )
    return list(tables.items())


def _pipeline_table(path: Path) -> pl.DataFrame | None:
    try:
        if "optype" not in pl.read_parquet_schema(path):
            return None
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{path} cannot be read as parquet ({str(error).splitlines()[0]}): check the path, or "
            "write the file again."
        ) from error
    return table if is_pipeline_table(table) else None


def _recordings(
    request: StragglersRequest, job: Job | None
) -> tuple[list[RankRecording], list[str]]:
    """The recordings of all ranks, in order, and what to say of those that could not be read."""
    sources = read_traces(request.paths)
    options = ExtractOptions(
        rules=load_rules(request.rules),
        steps=request.steps,
        job=None if job is None else job_groups(job),
    )
    recordings: list[RankRecording] = []
    warnings: list[str] = []
    with shown_progress(len(sources)) as show:
        for outcome in extract_sources(sources, options, request.processes):
            show(outcome.source)
            if outcome.recording is None:
                warnings.append(outcome.error)
                continue
            recordings.append(outcome.recording)
            if outcome.is_numbered and len(sources) > 1:
                warnings.append(
                    f"{outcome.source.label} does not say its rank: it is shown as rank "
                    f"{outcome.recording.rank}"
                )
    if not recordings:
        raise InputError(warnings[0])
    _check_ranks(recordings)
    places = places_beside(sources)
    if job is not None:
        _check_world(job, recordings)
        places = {**job_places(job), **places}
    return sorted(placed(recordings, places), key=lambda one: one.rank), sorted(warnings)


def _coordinates(job: Job) -> dict[int, dict[str, int]]:
    """Every rank's places on the axes."""
    return {rank: dict(place.coordinates) for rank, place in job_places(job).items()}


def _check_world(job: Job, recordings: Sequence[RankRecording]) -> None:
    """Raises `InputError` where the recordings are of another number of ranks than the job."""
    most = max(one.rank for one in recordings) + 1
    told = max((one.world_size or 0 for one in recordings), default=0)
    if most > job.layout.world_size or (told and told != job.layout.world_size):
        raise InputError(
            f"the recordings are of {told or most:,} ranks, and {job.source} has "
            f"{job.layout.world_size:,}: its coordinates would be wrong; add "
            f"--set world_size={told or most}, or name the job that was recorded."
        )


def _check_table(job: Job, found: Found) -> None:
    """Raises `InputError` where an op table has more ranks than the job."""
    if len(found.ranks) > job.layout.world_size:
        raise InputError(
            f"the op table has {len(found.ranks):,} ranks, and {job.source} has "
            f"{job.layout.world_size:,}: name the job that was recorded, or leave --job out; op "
            "tables tell places themselves."
        )


def _check_ranks(recordings: Sequence[RankRecording]) -> None:
    """Raises `InputError` where two recordings are of one rank."""
    seen: dict[int, str] = {}
    for one in recordings:
        if one.rank in seen:
            raise InputError(
                f"{seen[one.rank]} and {one.source} are both of rank {one.rank}: a rank can be "
                "there once; name one of them."
            )
        seen[one.rank] = one.source
