"""`steptally count JOB`: FLOPs and parameters of a step, and the MFU of a measured rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.cli.throughput import Measured
    from steptally.tally import Tally


def count_command(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Script, log, YAML, config.json, job file or preset."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    convention: Annotated[
        str, typer.Option("--convention", metavar="NAME", help="What counts as useful.")
    ] = "exact-causal",
    packed_lengths: Annotated[
        str | None,
        typer.Option(
            "--packed-lengths",
            metavar="N,N…",
            help="Tokens of each document that fills a sequence (default: one of seq_length).",
        ),
    ] = None,
    step_time: Annotated[
        float | None, typer.Option("--step-time", help="Measured seconds of an optimizer step.")
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option("--tokens-per-second", help="Measured tokens/s of one device."),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option("--tflops", help="Printed TFLOP/s of one device, in --convention."),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option("--mfu", help="Printed MFU (0.4 or 40), over --peak-tflops."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="See `steptally devices`.")
    ] = None,
    peak_tflops: Annotated[
        float | None,
        typer.Option("--peak-tflops", help="The peak that you or a source divided by."),
    ] = None,
    peak_dtype: Annotated[
        str | None,
        typer.Option("--peak-dtype", help="Whose peak MFU divides by (default: the job's)."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Count the useful and executed FLOPs and the parameters of JOB, exactly.

    With a measured step time, rate or TFLOP/s and a device: MFU and HFU. See docs/cli/count.md.
    """
    from steptally.cli.throughput import Measured

    measured = Measured(
        step_time_s=step_time,
        tokens_per_s_per_device=tokens_per_second,
        tflops_per_device=tflops,
        mfu=mfu,
        device=device,
        peak_tflops=peak_tflops,
        peak_dtype=peak_dtype,
    )
    tally = count(job, overrides or [], convention, read_lengths(packed_lengths), measured)
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally)


def count(
    job: str,
    overrides: list[str],
    convention: str,
    packed_lengths: list[int] | None,
    measured: Measured,
) -> Tally:
    """The predicted tally of a job, with MFU and HFU where something measured is given."""
    from steptally.cli.throughput import throughput
    from steptally.job import read_job
    from steptally.predict.account import predict
    from steptally.predict.conventions import find_convention

    counted = find_convention(convention)
    described = read_job(job, overrides)
    tally = predict(described, counted, packed_lengths)
    found = throughput(described, counted, packed_lengths, measured)
    return replace(
        tally,
        summary={**tally.summary, **found.figures},
        warnings=(*tally.warnings, *found.warnings),
        refusals=(*tally.refusals, *found.refusals),
    )


def read_lengths(text: str | None) -> list[int] | None:
    """The lengths of `--packed-lengths`.

    >>> read_lengths("1024, 512,512")
    [1024, 512, 512]
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"--packed-lengths got {text[:60]!r}: it must be whole numbers of tokens with commas "
            f"between, as 1024,512,512."
        ) from error
