"""`steptally compare A B`: two tallies side by side, line by line."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.tally import Comparison, Tally

STANDARD_INPUT = "-"
MOST_ROWS = 16
MOST_REASONS = 3
SIDE = "A tally (JSON of a verb), a run directory, a trace or folder of traces, or -."


def compare_command(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="What A is compared with, likewise.")],
    accounts: Annotated[
        list[str] | None,
        typer.Option("--account", metavar="NAME", help="Only this account, or `summary`."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="The job of A and B where these are traces."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", metavar="PERCENT", help="Exit 1 if a line differs by more."),
    ] = None,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Lines to print of each account.")
    ] = MOST_ROWS,
    every: Annotated[bool, typer.Option("--all", help="Print every line instead.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, every line.")] = False,
) -> None:
    """Lay A and B side by side: predicted, rehearsed or measured, runs or layouts.

    Times and rates compare only where both do the same work. See docs/cli/compare.md.
    """
    limit = None if fail_on is None else read_percent(fail_on)
    comparison = compare(a, b, accounts or [], job)
    beyond = 0
    if limit is not None:
        _require_judgeable(comparison, accounts or [])
        beyond = len(comparison.beyond(limit))
    if json_output:
        _print_json(comparison, limit, beyond)
    else:
        _print(comparison, limit, beyond, sys.maxsize if every else most)
    if beyond:
        raise typer.Exit(1)


def compare(a: str, b: str, accounts: list[str], job: str | None = None) -> Comparison:
    """The comparison that the verb prints. Raises `InputError` for what cannot be used."""
    from steptally.tally import compare_tallies

    if a == b == STANDARD_INPUT:
        raise InputError(
            "A and B are both -, and standard input can be read once: name a file for one of them."
        )
    if job is not None and not any(_holds_traces(side) for side in (a, b)):
        raise InputError(
            f"--job {job} is given, and neither A nor B is a trace: a tally says its own job; "
            "drop --job."
        )
    sides = (read_side(a, job), read_side(b, job))
    return compare_tallies(*sides, names=(a, b), accounts=accounts)


def read_side(argument: str, job: str | None = None) -> Tally:
    """The tally that an argument names; only traces are measured for it, and nothing is written.

    `job` is what a trace is of. Raises `InputError` for what is not there, cannot be read, or is
    no tally.
    """
    from steptally.tally import tally_from_json
    from steptally.trace.run_directory import RunDirectory

    if argument == STANDARD_INPUT:
        return tally_from_json(_read_standard_input(), "standard input")
    path = Path(argument)
    try:
        if _holds_traces(argument):
            from steptally.cli.trace_request import TraceRequest, traced

            return traced(TraceRequest(paths=[argument], job=job))
        if path.is_dir():
            path = RunDirectory(path).tally
            if not path.exists():
                raise InputError(
                    f"{argument} holds no tally.json: name a run directory that has one; "
                    f"`steptally report {argument}` accounts for a run that was recorded."
                )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            f"{argument} is not there: name what a verb printed with --json, a run directory, "
            f"traces, or - for standard input."
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{argument} cannot be read as a tally: {error}.") from error
    return tally_from_json(text, str(path))


def _holds_traces(argument: str) -> bool:
    """Whether an argument is a trace, or a folder of some that is no run directory."""
    from steptally.trace.recognise import recognise
    from steptally.trace.run_directory import RunDirectory

    path = Path(argument)
    if path.is_dir():
        run = RunDirectory(path)
        is_run = run.tally.exists() or run.manifest.exists()
        return not is_run and any(
            recognise(file) is not None
            for pattern in ("*.json", "*.json.gz", "*.sqlite", "*.parquet")
            for file in path.glob(pattern)
        )
    return path.is_file() and recognise(path) is not None


def read_percent(text: str) -> Fraction:
    """The limit of `--fail-on`, exactly as written.

    >>> read_percent("0.1%"), read_percent("3")
    (Fraction(1, 10), Fraction(3, 1))
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"--fail-on got {text[:60]!r}: it must be a percentage of 0 or more, as 3% or 0 for "
            f"exactly equal."
        )
    return Fraction(str(value))


def _read_standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except (AttributeError, OSError, ValueError) as error:
        raise InputError(f"standard input cannot be read as a tally: {error}.") from error


def _require_judgeable(comparison: Comparison, accounts: list[str]) -> None:
    """A check that looked at nothing, or not at the times it was given, has not passed."""
    from steptally.tally.compare_figures import NOT_EQUAL_WORK

    lines = list(comparison.lines)
    if any(line.refused == NOT_EQUAL_WORK for line in lines):
        raise InputError(
            f"--fail-on cannot judge times and rates of A and B, which do not do the same work "
            f"({'; '.join(comparison.unequal_work[:MOST_REASONS])}): compare equal jobs, or name "
            f"with --account what is counted, as flops."
        )
    judged = {line.account for line in lines if line.compared or line.counts_alone}
    missing = [name for name in accounts if name not in judged]
    if judged and not missing:
        return
    why = "; ".join(comparison.refusals) or "they have no line in common"
    raise InputError(
        f"--fail-on has nothing to judge in {', '.join(missing) or 'these two tallies'} ({why}): "
        f"compare tallies that share an account, or leave --fail-on out."
    )


def _print_json(comparison: Comparison, limit: Fraction | None, beyond: int) -> None:
    content = comparison.as_json()
    if limit is not None:
        content["fail_on"] = {"percent": float(limit), "lines": beyond}
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


def _print(comparison: Comparison, limit: Fraction | None, beyond: int, most: int) -> None:
    from steptally.report.terminal_compare import print_comparison

    # A terminal of an old encoding shows `?` for what it lacks, rather than a traceback.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    print_comparison(comparison, most_rows=most)
    if limit is not None:
        differ = "line differs" if beyond == 1 else "lines differ"
        typer.echo(f"\n{beyond or 'no'} {differ} by more than {float(limit):g} %")
