"""`steptally traffic JOB`: what one rank communicates in a step, by process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from steptally.cli.gemms import chosen_rank

if TYPE_CHECKING:
    from steptally.tally import Tally

MOST_ROWS = 200


def traffic_command(
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
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """List what one rank of JOB communicates: groups, collectives, calls, bytes, overlap."""
    tally = traffic(job, overrides or [], rank, stage)
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally, most_rows=MOST_ROWS)


def traffic(job: str, overrides: list[str], rank: int | None, stage: int | None) -> Tally:
    """The tally that the verb prints. Raises `InputError` for what cannot be used."""
    from steptally.job import read_job
    from steptally.predict.traffic_tally import traffic_tally

    described = read_job(job, overrides)
    return traffic_tally(described, chosen_rank(described, rank, stage))
