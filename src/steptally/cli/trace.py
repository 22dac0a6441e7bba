"""`steptally trace PATH…`: where the time of recorded ranks went, and whose communication shows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from steptally.job import Job
    from steptally.measure.trace_pool import Outcome, Source
    from steptally.tally import Tally

_STEPS = re.compile(r"(\d+)(?:-(\d+))?$")


def trace_command(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Traces, or folders or globs of them.")
    ],
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Name process groups as this job's ranks form."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override a setting of JOB."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="A-B", help="Only these steps. [all]")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="The rank of the one trace. [as it says]")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="Place kernels on its roofline. [JOB's]"),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", metavar="FILE", help="Kinds and families of kernels, yours first."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="How many files at once. [the cores]")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Keep tally and accounts there.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Account for recorded time: compute, exposed communication by group, idle, per rank and step.

    Reads Kineto traces of PyTorch's profiler. See docs/cli/trace.md.
    """
    tally = trace_tally_of(
        paths,
        job=job,
        overrides=overrides or [],
        steps=steps_of(steps),
        rank=rank,
        device=device,
        rules_file=rules,
        processes=processes,
    )
    if save is not None:
        from steptally.cli.trace_save import save_tally

        save_tally(tally, save)
    if json_output:
        typer.echo(json.dumps(trace_json(tally), indent=1, allow_nan=False, default=str))
        return
    from steptally.report.terminal import print_tally

    print_tally(tally)


def trace_tally_of(
    paths: Sequence[str],
    *,
    job: str | None = None,
    overrides: Sequence[str] = (),
    steps: tuple[int, int] | None = None,
    rank: int | None = None,
    device: str | None = None,
    rules_file: Path | None = None,
    processes: int | None = None,
) -> Tally:
    """The tally that the verb prints. Raises `InputError` for what cannot be used."""
    from steptally.cli.trace_groups import check_world, job_groups
    from steptally.cli.trace_sources import find_sources
    from steptally.job import read_job
    from steptally.job.catalog.devices import find_device
    from steptally.measure.absent_effects import absent_effects
    from steptally.measure.trace_account import TraceOptions
    from steptally.measure.trace_pool import measure_sources
    from steptally.measure.trace_tally import TraceMerge, trace_tally
    from steptally.trace.kinds import load_rules

    if overrides and job is None:
        raise InputError("--set is given without --job: it overrides a setting of a job; add one.")
    described: Job | None = None if job is None else read_job(job, list(overrides))
    rules = load_rules(rules_file)
    sources: Sequence[Source] = find_sources(paths, rank)
    options = TraceOptions(
        rules=rules,
        steps=steps,
        job=None if described is None else job_groups(described),
    )
    merge, warnings = TraceMerge(), []
    with shown_progress(len(sources)) as show:
        for outcome in measure_sources(sources, options, processes):
            show(outcome)
            warnings += taken(outcome, merge, len(sources))
    check_ranks(merge.accounts)
    if described is not None:
        check_world(described, merge.accounts)
    name = device or (described.cluster.device if described else None)
    tally = trace_tally(
        merge,
        device=find_device(name) if name else None,
        job=None if described is None else described.as_json(),
        world_size=None if described is None else described.layout.world_size,
        warnings=warnings,
    )
    if described is None:
        return tally
    return replace(tally, warnings=[*tally.warnings, *absent_effects(described, tally)])


def trace_json(tally: Tally) -> dict[str, Any]:
    """The tally's own object with one key more: `ranks`, each rank's accounts together."""
    from steptally.measure.trace_tally import rank_objects

    return {**tally.as_json(), "ranks": rank_objects(tally)}


def steps_of(text: str | None) -> tuple[int, int] | None:
    """The first and last step of `--steps`. Raises `InputError` for anything but N or A-B."""
    if text is None:
        return None
    found = _STEPS.match(text.strip())
    if found is None:
        raise InputError(f"--steps is {text!r}: it must be one step, as 3, or a range, as 3-5.")
    first, last = int(found.group(1)), int(found.group(2) or found.group(1))
    if last < first:
        raise InputError(
            f"--steps is {text!r}: the last step comes before the first; turn it round."
        )
    return first, last


def taken(outcome: Outcome, merge: Any, sources: int) -> list[str]:
    """Add an outcome to the merge; what to say of it. An only trace that fails is an error."""
    if outcome.account is None:
        if sources == 1:
            raise InputError(outcome.error)
        return [outcome.error]
    merge.add(outcome.account)
    if outcome.is_numbered and sources > 1:
        rank = outcome.account.rank
        return [f"{outcome.source.path} does not say which rank it is of: it is shown as {rank}"]
    return []


def check_ranks(accounts: Sequence[Any]) -> None:
    """Raises `InputError` where nothing could be read, or two traces are of one rank."""
    if not accounts:
        raise InputError("no trace could be read: name files that a profiler wrote.")
    seen: dict[int, str] = {}
    for account in accounts:
        other = seen.setdefault(account.rank, account.source.source)
        if other is not account.source.source:
            raise InputError(
                f"{other} and {account.source.source} are both of rank {account.rank}: name one "
                f"of them, or rename them rank<N>.json where the files do not say their rank."
            )


@contextmanager
def shown_progress(files: int) -> Iterator[Callable[[Outcome], None]]:
    """Show on a terminal's stderr how many files are done; yields what to call for each."""
    if files == 1 or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("reading traces", total=files)

        def show(outcome: Outcome) -> None:
            bar.update(task, advance=1, description=outcome.source.path.name)

        yield show
