"""`steptally calibrate`: this machine's own peaks, measured and kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from steptally.job import Device
    from steptally.job.calibration import Calibration


def calibrate_command(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the calibration with all samples as JSON.")
    ] = False,
) -> None:
    """Measure this machine's peaks once, and keep them: matrix products, memory, gloo.

    Takes about 20 seconds on all cores. MFU and HFU of runs on this machine are against these
    peaks. See docs/cli/calibrate.md.
    """
    calibration, path = _measured_and_saved()
    if json_output:
        typer.echo(json.dumps(calibration.as_json(), indent=1, allow_nan=False))
        return
    from rich.console import Console

    print_calibration(calibration, Console())
    typer.echo(f"\nsaved as {path}")


def calibrated_machine() -> Device:
    """This machine's peaks: of its saved calibration, or of one made and saved now.

    A saved one that was made on a busy machine is made again. Warnings go to standard error.
    """
    from steptally.job.calibration import load_calibration

    try:
        calibration = load_calibration()
    except InputError:  # none yet, or of another machine
        calibration = None
    if calibration is None or calibration.warnings:
        calibration, _ = _measured_and_saved()
        for warning in calibration.warnings:
            typer.echo(f"calibration: {warning}", err=True)
    return calibration.device


def _measured_and_saved() -> tuple[Calibration, Path]:
    from rich.console import Console

    from steptally.run.calibrate import measure_machine, save_calibration

    if sys.stderr.isatty():
        with Console(stderr=True).status("measuring this machine") as status:
            calibration = measure_machine(lambda what: status.update(f"measuring {what}"))
    else:
        calibration = measure_machine()
    return calibration, save_calibration(calibration)


def print_calibration(calibration: Calibration, console: Console) -> None:
    """The machine, a line for each quantity's best way, and the warnings."""
    from rich.text import Text

    from steptally.report.quantity import printable

    console.print(Text(printable(calibration.device.name), style="bold"))
    console.print(
        Text(
            f"{calibration.device.source}, torch {calibration.torch_version}, "
            f"{calibration.threads} threads, in {calibration.duration_s:.0f} s",
            style="dim",
        )
    )
    console.print(_table(calibration))
    for warning in calibration.warnings:
        console.print(Text.assemble(("! ", "yellow"), warning))


def _table(calibration: Calibration) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from steptally.report.quantity import quantity

    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="dim",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("measured", no_wrap=True)
    for heading in ("median", "best", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how")
    for name in calibration.quantities():
        best = calibration.best_of(name)
        if best is not None:
            values = (quantity(value, best.unit) for value in (best.median, best.best))
            cells = (name, *values, f"{100 * best.spread:.1f} %", best.case)
            table.add_row(*(Text(cell) for cell in cells))
    return table
