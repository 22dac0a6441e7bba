"""`steptally gemms JOB`: every matrix product of one rank, and what bounds it on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steptally.job import Job
    from steptally.tally import Tally

MOST_ROWS = 200


def gemms_command(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Script, log, YAML, config.json, job file or preset."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Which rank. [0]")] = None,
    stage: Annotated[
        int | None, typer.Option("--stage", help="A rank of this pipeline stage instead.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="See `steptally devices`. [the job's]"),
    ] = None,
    launch_us: Annotated[
        float, typer.Option("--launch-us", help="A shorter kernel is bound by its launch.")
    ] = 4.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """List every matrix product of one rank of JOB: shapes, calls, FLOPs, bytes, expected bound."""
    tally = gemms(job, overrides or [], rank, stage, device, launch_us)
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally, most_rows=MOST_ROWS)


def gemms(
    job: str,
    overrides: list[str],
    rank: int | None,
    stage: int | None,
    device: str | None,
    launch_us: float,
) -> Tally:
    """The tally that the verb prints. Raises `InputError` for what cannot be used."""
    from steptally.errors import InputError
    from steptally.job import read_job
    from steptally.job.catalog.devices import find_device
    from steptally.predict.gemms_tally import gemms_tally

    if launch_us <= 0:
        raise InputError(f"--launch-us is {launch_us}: it must be above 0, as 4.")
    described = read_job(job, overrides)
    name = device or described.cluster.device
    return gemms_tally(
        described,
        chosen_rank(described, rank, stage),
        find_device(name) if name else None,
        launch_s=launch_us * 1e-6,
    )


def chosen_rank(job: Job, rank: int | None, stage: int | None) -> int:
    """The rank that `--rank` or `--stage` means; the first of a stage. Raises `InputError`."""
    from steptally.errors import InputError
    from steptally.predict.ranks import rank_at

    stages = job.layout.pipeline_model_parallel_size
    if rank is not None and stage is not None:
        raise InputError(f"--rank {rank} and --stage {stage} both choose a rank: pass one of them.")
    if stage is None:
        return rank or 0
    if not 0 <= stage < stages:
        raise InputError(
            f"--stage is {stage}, but the job has {stages} pipeline stages: use 0 to {stages - 1}."
        )
    return rank_at(job.layout, pp=stage)
