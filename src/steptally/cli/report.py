"""`steptally report RUN`: the account of a recorded run, in the terminal or as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.tally import Tally

# Narrower than this no table is readable.
NARROWEST = 40


def report_command(
    run: Path = typer.Argument(help="A run directory (runs/…), or a tally.json.", metavar="RUN"),
    as_json: bool = typer.Option(False, "--json", help="Print the tally as JSON."),
    html: Path | None = typer.Option(
        None, "--html", metavar="FILE", help="Write one offline HTML file instead of printing."
    ),
    width: int | None = typer.Option(
        None, "--width", min=NARROWEST, help="Columns to print for; the terminal's own otherwise."
    ),
) -> None:
    """Show where the FLOPs, bytes and microseconds of a recorded step went.

    Every figure comes with its basis and convention. See docs/cli/report.md.
    """
    if as_json and html is not None:
        raise InputError(
            "--json and --html FILE are both given: one report has one form; drop one of them."
        )
    tally = read_tally(run)
    if as_json:
        typer.echo(tally.dumps())
    elif html is not None:
        _write_html(tally, html)
    else:
        _print(tally, width)


def read_tally(run: Path) -> Tally:
    """The tally of a run directory or of a file; raises `InputError` where there is none."""
    from steptally.tally import tally_from_json
    from steptally.trace.run_directory import RunDirectory

    path = run
    if run.is_dir():
        directory = RunDirectory(run)
        path = directory.tally
        if not path.exists():
            status = directory.read_manifest().get("status")
            raise InputError(
                f"{run} holds no tally.json: the run's status is {status!r}, and the tally is "
                f"written when `steptally run` ends. Run the job again to its end."
            )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            f"{path} is not there: name a run directory that `steptally run` wrote "
            f"(runs/<time>-<name>), or a tally.json."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a tally: {error}.") from error
    return tally_from_json(text, str(path))


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

    try:
        write_atomically(path, render_html(tally))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}.") from error
    typer.echo(f"wrote {path}")
