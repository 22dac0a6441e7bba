"""`steptally demo`: four real Megatron-Core ranks on this machine, recorded and accounted for."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from steptally.cli.run import run, show

DEMO_STEPS = 20


def demo_command(
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the run directory is made.")
    ] = Path("runs"),
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Train a small GPT on 4 ranks (TP2 with sequence parallelism x DP2) and show its step."""
    from steptally.cli.calibrate import calibrated_machine

    calibrated_machine()
    with resources.as_file(resources.files("steptally.job.catalog") / "demo.yaml") as job_file:
        tally = run(
            str(job_file),
            nproc=None,
            steps=DEMO_STEPS,
            warmup_steps=3,
            traced_steps=2,
            data=None,
            directory=directory,
            name="demo",
            overrides=(),
        )
    show(tally, json_output)
