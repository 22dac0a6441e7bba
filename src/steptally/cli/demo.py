"""`steptally demo`: four real Megatron-Core ranks on this machine, recorded and accounted for."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from steptally.cli.run import DEFAULT_STEPS, DEFAULT_WARMUP_STEPS, run, show


def demo_command(
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the run directory is made.")
    ] = Path("runs"),
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Train a small GPT on 4 ranks (TP2 with sequence parallelism x DP2) and account for its step.

    Takes a minute or two on two cores. Measures the machine's peak first, where it is not known.
    """
    from steptally.cli.calibrate import calibrated_machine
    from steptally.job import read_job

    calibrated_machine()
    with resources.as_file(resources.files("steptally.job.catalog") / "demo.yaml") as job_file:
        job = replace(read_job(str(job_file)), source="demo.yaml, which comes with steptally")
    tally, recorded = run(
        job,
        nproc=None,
        steps=DEFAULT_STEPS,
        warmup_steps=DEFAULT_WARMUP_STEPS,
        traced_steps=None,
        data="corpus",
        directory=directory,
    )
    show(tally, recorded, json_output)
