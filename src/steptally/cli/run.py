"""`steptally run JOB`: train real Megatron-Core ranks, record them, account for their step."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.job import Job
    from steptally.tally import Tally
    from steptally.trace.run_directory import RunDirectory

DEFAULT_STEPS, DEFAULT_WARMUP_STEPS = 20, 3
MOST_TRACED_STEPS = 10_000  # more is a slip of a key: a trace grows with every step
_STEPS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def run_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job file, or anything JOB may be.")],
    nproc: Annotated[
        int | None,
        typer.Option("--nproc", min=1, help="Ranks to start here (default: the job's world_size)."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps.")] = DEFAULT_STEPS,
    warmup_steps: Annotated[
        int, typer.Option("--warmup-steps", min=0, help="First steps, that are not timed.")
    ] = DEFAULT_WARMUP_STEPS,
    traced_steps: Annotated[
        str | None,
        typer.Option(
            "--traced-steps",
            metavar="N,A-B…",
            help="Steps to trace, from 1; 'none' for none (default: two after warm-up).",
        ),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="FILE", help="'corpus', 'random', or a text file.")
    ] = "corpus",
    directory: Annotated[
        Path, typer.Option("--directory", help="Where run directories are made.")
    ] = Path("runs"),
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option("--inject", metavar="SPEC", help="Inject a fault, as slow-rank=3:1.5x."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Train JOB on real Megatron-Core ranks, record every rank, and account for its step.

    Makes a run directory; step times come from steps that are not traced. See docs/cli/run.md.
    """
    from steptally.job import read_job

    tally, recorded = run(
        read_job(job, overrides or ()),
        nproc=nproc,
        steps=steps,
        warmup_steps=warmup_steps,
        traced_steps=read_traced_steps(traced_steps),
        data=data,
        directory=directory,
        inject=inject or (),
    )
    show(tally, recorded, json_output)


def run(
    job: Job,
    *,
    nproc: int | None,
    steps: int,
    warmup_steps: int,
    traced_steps: tuple[int, ...] | None,
    data: str,
    directory: Path,
    inject: Sequence[str] = (),
) -> tuple[Tally, RunDirectory]:
    """Check, launch, measure and save; return the tally and where it is."""
    from steptally.cli.account import account_for_run, save
    from steptally.engine.availability import find_parts
    from steptally.run.data import open_source
    from steptally.run.faults.check import check_faults
    from steptally.run.faults.specification import parse_faults
    from steptally.run.launch import launch
    from steptally.run.preflight import prepare_run
    from steptally.run.progress import shown_progress
    from steptally.run.schedule import nothing_timed

    faults = parse_faults(inject)
    parts = find_parts()
    prepared = prepare_run(job, process_count=nproc or job.layout.world_size, parts=parts)
    check_faults(faults, prepared.job, cuda=parts.cuda, steps=steps)
    open_source(data, prepared.job)  # a text that is too short is told before ranks start
    untimed = nothing_timed(steps, warmup_steps, traced_steps or ())
    warnings = [*prepared.warnings, *([untimed] if untimed else [])]
    if faults:
        warnings.append(f"this run gets faults on purpose: {', '.join(inject)}")
    for warning in warnings:
        sys.stderr.write(f"steptally: warning: {warning}\n")
    with shown_progress(steps) as show_step:
        recorded = launch(
            prepared.job,
            steps=steps,
            directory=directory,
            warmup_steps=warmup_steps,
            traced_steps=traced_steps,
            data=data,
            faults=faults,
            on_progress=show_step,
        )
    tally = account_for_run(recorded)
    save(recorded, tally)
    return tally, recorded


def read_traced_steps(text: str | None) -> tuple[int, ...] | None:
    """The steps that `--traced-steps` names; None where the choice is left to the launcher.

    >>> read_traced_steps("3-5,8")
    (3, 4, 5, 8)
    """
    if text is None:
        return None
    if text.strip().lower() == "none":
        return ()
    named = [_STEPS.fullmatch(word) for word in text.replace(",", " ").split()]
    ranges = [(int(one[1]), int(one[2] or one[1])) for one in named if one]
    if not named or None in named or any(not 0 < first <= last for first, last in ranges):
        raise InputError(
            f"--traced-steps got {text!r}: name steps counted from 1, as 6,7 or 6-9; or none."
        )
    if sum(1 + last - first for first, last in ranges) > MOST_TRACED_STEPS:
        raise InputError(
            f"--traced-steps got {text!r}: more than {MOST_TRACED_STEPS:,} steps are not traced "
            "in one run; name fewer."
        )
    return tuple(sorted({step for first, last in ranges for step in range(first, last + 1)}))


def show(tally: Tally, recorded: RunDirectory, json_output: bool) -> None:
    """Print a tally as JSON, or for people; last, where the same is to be read again."""
    if json_output:
        typer.echo(tally.dumps())
    else:
        from steptally.report.terminal import print_tally

        print_tally(tally)
    sys.stderr.write(f"steptally: recorded in {recorded.path}: open {recorded.report.name} there\n")
