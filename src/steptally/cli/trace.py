"""`steptally trace PATH…`: where the time of recorded ranks went, and whose communication shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from steptally.errors import InputError

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
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Leave out operators: no shapes, no FLOPs.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="DIR", help="Keep traces and accounts there as parquet."),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto", metavar="FILE", help="Draw all for ui.perfetto.dev (.gz packs)."
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Account for recorded time: compute, exposed communication by group, idle, per rank and step.

    Reads PyTorch profiler traces and Nsight Systems exports. See docs/cli/trace.md.
    """
    from steptally.cli.trace_request import TraceRequest, trace_json, traced

    tally = traced(
        TraceRequest(
            paths=paths,
            job=job,
            overrides=overrides or (),
            steps=steps_of(steps),
            rank=rank,
            device=device,
            rules=rules,
            processes=processes,
            low_memory=low_memory,
            save=save,
            perfetto=perfetto,
        )
    )
    if json_output:
        typer.echo(json.dumps(trace_json(tally), indent=1, allow_nan=False, default=str))
        return
    from steptally.report.terminal import print_tally

    print_tally(tally)


def steps_of(text: str | None) -> tuple[int, int] | None:
    """The first and last step of `--steps`. Raises `InputError` for anything but N or A-B.

    >>> steps_of("3-5"), steps_of("7")
    ((3, 5), (7, 7))
    """
    if text is None:
        return None
    found = _STEPS.match(text.strip())
    if found is None:
        raise InputError(f"--steps is {text!r}: it must be one step, as 3, or a range, as 3-5.")
    first, last = int(found.group(1)), int(found.group(2) or found.group(1))
    if last < first:
        raise InputError(f"--steps is {text!r}: the last step comes before the first; swap them.")
    return first, last
