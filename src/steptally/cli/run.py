"""`steptally run JOB`: train real Megatron-Core ranks, record them, account for their step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steptally.errors import InputError


def run_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job file, or anything JOB may be.")],
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks on this machine (default: the job).")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps.")] = 20,
    warmup_steps: Annotated[
        int, typer.Option("--warmup-steps", min=0, help="First steps, kept apart.")
    ] = 3,
    traced_steps: Annotated[
        int, typer.Option("--traced-steps", min=0, help="Steps to trace, after warm-up.")
    ] = 2,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="FILE|random", help="Text to train on (default: ours)."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", help="Where run directories are made.")
    ] = Path("runs"),
    name: Annotated[str | None, typer.Option("--name", help="Name of the run.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Train JOB on real Megatron-Core ranks, record every rank, and account for its step."""
    tally = run(
        job,
        nproc=nproc,
        steps=steps,
        warmup_steps=warmup_steps,
        traced_steps=traced_steps,
        data=data,
        directory=directory,
        name=name,
        overrides=tuple(overrides or ()),
    )
    show(tally, json_output)


def run(
    argument: str,
    *,
    nproc: int | None,
    steps: int,
    warmup_steps: int,
    traced_steps: int,
    data: str | None,
    directory: Path,
    name: str | None,
    overrides: tuple[str, ...],
) -> Any:
    """Read, check, launch, measure and save; return the tally."""
    from steptally.cli.account import account_for_run, save
    from steptally.job import read_job
    from steptally.run.launch import launch
    from steptally.run.preflight import check_runnable
    from steptally.run.progress import shown_progress
    from steptally.run.schedule import choose_traced_steps

    if nproc is not None and not any(text.startswith("world_size=") for text in overrides):
        overrides = (*overrides, f"world_size={nproc}")
    job = read_job(argument, overrides)
    if nproc is not None and job.layout.world_size != nproc:
        raise InputError(
            f"--nproc is {nproc} and world_size is {job.layout.world_size}: drop one of them."
        )
    check_runnable(job)
    with shown_progress(steps) as show_step:
        recorded = launch(
            job,
            steps=steps,
            warmup_steps=warmup_steps,
            traced_steps=choose_traced_steps(steps, warmup_steps, traced_steps),
            data=data or "corpus",
            directory=directory,
            name=name,
            on_progress=show_step,
        )
    tally = account_for_run(recorded)
    save(recorded, tally)
    return tally


def show(tally: Any, json_output: bool) -> None:
    """Print a tally as JSON, or for people."""
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally)
