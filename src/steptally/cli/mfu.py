"""`steptally mfu LOG`: tokens/s, MFU and HFU of a Megatron log, and what its TFLOP/s count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mfu_command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A log with iteration lines.")],
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Its job, where LOG holds no argument dump."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="Devices, where nothing says it.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="See `steptally devices`.")
    ] = None,
    peak_dtype: Annotated[
        str | None,
        typer.Option("--peak-dtype", help="Whose peak MFU divides by (default: the job's)."),
    ] = None,
    warmup_iterations: Annotated[
        int | None,
        typer.Option("--warmup-iterations", min=0, help="Of each start (default: found)."),
    ] = None,
    convention: Annotated[
        str, typer.Option("--convention", metavar="NAME", help="What counts as useful.")
    ] = "exact-causal",
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Account for the speed that a Megatron log shows: tokens/s per device, MFU, HFU.

    Warm-up, skipped steps, batch ramp-up and restarts are set apart; the logged TFLOP/s are traced
    to the convention that makes them. See docs/cli/mfu.md.
    """
    from steptally.cli.log_account import LoggedRun, log_tally

    run = LoggedRun(
        log=log,
        job=job,
        overrides=tuple(overrides or ()),
        world_size=world_size,
        device=device,
        peak_dtype=peak_dtype,
        warmup_iterations=warmup_iterations,
        convention=convention,
    )
    tally = log_tally(run)
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally)
