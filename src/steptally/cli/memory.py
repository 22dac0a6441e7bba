"""`steptally memory JOB`: what every rank holds, by lifetime, whether it fits, and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steptally.tally import Tally

MOST_ROWS = 200


def memory_command(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Script, log, YAML, config.json, job file or preset."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", help="One rank only. [the first of each stage]")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="See `steptally devices`. [the job's]"),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Account for the memory of every rank of JOB: peaks by lifetime, margin, changes that help.

    See docs/cli/memory.md.
    """
    tally = memory(job, overrides or [], rank, device)
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally, most_rows=MOST_ROWS)


def memory(job: str, overrides: list[str], rank: int | None, device: str | None) -> Tally:
    """The tally that the verb prints. Raises `InputError` for what cannot be used."""
    from steptally.job import read_job
    from steptally.job.catalog.devices import find_device
    from steptally.predict.memory.tally import memory_tally

    described = read_job(job, overrides)
    name = device or described.cluster.device
    return memory_tally(described, rank, find_device(name) if name else None)
