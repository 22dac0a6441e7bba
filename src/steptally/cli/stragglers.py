"""`steptally stragglers PATH…`: who makes the step late, why, and what mending it would buy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

    from steptally.measure.stragglers.search import Found


def stragglers_command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…",
            help="Traces of several ranks, op tables, a run directory, or a log with timers.",
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Name ranks and groups as this job's are."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override a setting of JOB."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="A-B", help="Only these steps. [all]")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            metavar="FILE",
            help="nvidia-smi, DCGM, NIC or expert logs of the same time: evidence.",
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", metavar="FILE", help="Kinds and families of kernels, yours first."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="How many files at once. [the cores]")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="PERCENT", help="Exit 1 if mending would save more of the step."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the heat map as a page.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="DIR", help="Keep every account there as parquet."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = (
        False
    ),
) -> None:
    """Name the cause of a late step in parallel coordinates, not its victims.

    Aligns clocks, splits collectives into wait and transfer, replays the step with suspects mended.
    See docs/cli/stragglers.md.
    """
    from steptally.cli.compare import read_percent
    from steptally.cli.stragglers_request import StragglersRequest, search
    from steptally.cli.trace import steps_of

    limit = None if fail_on is None else read_percent(fail_on)
    tally, found = search(
        StragglersRequest(
            paths=paths,
            job=job,
            overrides=overrides or (),
            steps=steps_of(steps),
            beside=beside or (),
            rules=rules,
            processes=processes,
            save=save,
        )
    )
    if html is not None:
        from steptally.report.html import render_html
        from steptally.trace.run_directory import write_atomically

        write_atomically(html, render_html(tally))
    if json_output:
        from steptally.measure.stragglers.found_tally import straggler_json

        content = straggler_json(tally, found)
        typer.echo(json.dumps(content, indent=1, allow_nan=False, default=str))
    else:
        from steptally.report.terminal import print_tally

        print_tally(tally)
    if limit is not None and saves_more(found, limit):
        raise typer.Exit(1)


def saves_more(found: Found, limit: Fraction) -> bool:
    """Whether mending all that is named saves more than so many percent of the step.

    Raises `InputError` where nothing was replayed.
    """
    from steptally.measure.stragglers.found_tally import recovered_share_of_step

    if found.judgement is None:
        raise InputError(
            "--fail-on has nothing to judge: this input has no step to replay, so that nothing "
            "tells what mending would save; give traces or op tables, or leave --fail-on out."
        )
    return 100 * recovered_share_of_step(found) > limit
