"""`steptally report RUN`: the account of a recorded run, in the terminal or as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.tally import Tally
    from steptally.trace.run_directory import RunDirectory

# Narrower than this no table is readable.
NARROWEST = 60


def report_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory (runs/…), or a tally.json.")
    ],
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Account for RUN as a recording of this job."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one offline HTML file, print nothing."),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", min=NARROWEST, help="Columns to print (default: the terminal's)."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Show where the FLOPs, bytes and microseconds of a recorded step went.

    Every figure comes with its basis and convention. See docs/cli/report.md.
    """
    if json_output and html is not None:
        raise InputError(
            "--json and --html FILE are both given: one report has one form; drop one of them."
        )
    tally = read_tally(run, job)
    if json_output:
        typer.echo(tally.dumps())
    elif html is not None:
        _write_html(tally, html)
    else:
        _print(tally, width)


def read_tally(run: Path, job: str | None = None) -> Tally:
    """The tally of a run directory or of a tally.json.

    A run directory without one (the run was killed, or recorded by a user's own loop) is measured
    and its tally saved; so is any that is given a job of its own. Raises `InputError` for a path
    that is neither.
    """
    from steptally.tally import tally_from_json
    from steptally.trace.run_directory import RunDirectory

    if run.is_dir():
        directory = RunDirectory(run)
        if job is not None or not directory.tally.exists():
            return _accounted(directory, job)
        run = directory.tally
    elif job is not None:
        raise InputError(
            f"--job {job} is given with {run}, which is no run directory: only the traces of a "
            f"run can be accounted for again."
        )
    return tally_from_json(_text(run), str(run))


def _accounted(directory: RunDirectory, job: str | None) -> Tally:
    from steptally.cli.account import account_for_run, save
    from steptally.job import read_job

    directory.read_manifest()  # a directory that is no run is told so before anything is loaded
    tally = account_for_run(directory, job=None if job is None else read_job(job))
    save(directory, tally)
    return tally


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            f"{path} is not there: name a run directory that `steptally run` wrote "
            f"(runs/<time>-<name>), or a tally.json."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a tally: {error}.") from error


def _print(tally: Tally, width: int | None) -> None:
    from rich.console import Console

    from steptally.report.terminal import print_tally

    # A terminal of an old encoding shows `?` for what it lacks, rather than a traceback.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    print_tally(tally, Console(width=width))


def _write_html(tally: Tally, path: Path) -> None:
    from steptally.report.html import render_html
    from steptally.trace.run_directory import write_atomically

    write_atomically(path, render_html(tally))
    typer.echo(f"wrote {path}")
