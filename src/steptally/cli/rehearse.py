"""`steptally rehearse JOB`: run the real Megatron-Core code of any rank on fake tensors."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from steptally.job import Job
    from steptally.tally import Tally

MOST_ROWS = 40


def rehearse_command(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Script, log, YAML, config.json, job file or preset."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Which rank. [0]")] = None,
    stages: Annotated[
        bool,
        typer.Option("--stages", help="One rank of every distinct program: all pipeline stages."),
    ] = False,
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches", metavar="N", help="A step of N micro-batches a rank. [the job's]"
        ),
    ] = None,
    tokens_per_expert: Annotated[
        str | None,
        typer.Option(
            "--tokens-per-expert",
            metavar="N,N,…|FILE",
            help="Relative loads of all experts, in text or in a file. [balanced]",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", help="Programs at a time, with --stages. [cores]"),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            "--save", metavar="DIR", help="Write tally.json and each rank's table of operations."
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Run the real Megatron-Core code of one rank, or of all stages, of JOB on fake tensors.

    Counts every product, collective and byte allocated. Needs the engine extra, and no GPU.
    See docs/cli/rehearse.md.
    """
    from pathlib import Path

    directory = None if save is None else Path(save)
    tally = rehearse(
        job,
        overrides or [],
        rank=rank,
        stages=stages,
        microbatches=microbatches,
        tokens_per_expert=tokens_per_expert,
        processes=processes,
        save=directory,
    )
    if json_output:
        typer.echo(tally.dumps())
        return
    from steptally.report.terminal import print_tally

    print_tally(tally, most_rows=MOST_ROWS)


def rehearse(
    job: str,
    overrides: list[str],
    *,
    rank: int | None = None,
    stages: bool = False,
    microbatches: int | None = None,
    tokens_per_expert: str | None = None,
    processes: int | None = None,
    save: Path | None = None,
) -> Tally:
    """The tally that the verb prints. Raises `InputError` for what cannot be used."""
    from steptally.engine.availability import find_parts, require_engine
    from steptally.errors import InputError
    from steptally.job import read_job

    if stages and rank is not None:
        raise InputError("--rank and --stages are both given: one rank, or one of every program?")
    if processes is not None and processes < 1:
        raise InputError(f"--processes is {processes}: it must be at least 1.")
    if processes is not None and not stages:
        raise InputError("--processes is given without --stages: one rank runs in one process.")
    described = with_microbatches(read_job(job, overrides), microbatches)
    require_engine(find_parts())
    if rank is not None:
        _require_rank(described, rank)
    if save is not None:
        _require_directory(save)

    from steptally.rehearse.pool import rehearse_all, rehearse_one, usable_processes
    from steptally.rehearse.routing import Routing
    from steptally.rehearse.substitutions import make_rehearsable
    from steptally.rehearse.tally import rehearsed_tally

    rehearsable = make_rehearsable(described)
    routing = Routing(weights=_weights(tokens_per_expert, described))
    if stages:
        with _progress() as on_done:
            rehearsed = rehearse_all(
                rehearsable,
                routing,
                processes=processes or usable_processes(),
                operations=save,
                on_done=on_done,
            )
    else:
        rehearsed = [rehearse_one(rehearsable, rank or 0, routing, save)]
    tally = rehearsed_tally(described, rehearsable, rehearsed, routing)
    if save is not None:
        from steptally.trace.run_directory import write_atomically

        write_atomically(save / "tally.json", tally.dumps())
    return tally


def with_microbatches(job: Job, microbatches: int | None) -> Job:
    """The job with a step of that many micro-batches a rank: another global batch size."""
    if microbatches is None:
        return job
    from dataclasses import replace

    from steptally.errors import InputError

    if microbatches < 1:
        raise InputError(f"--microbatches is {microbatches}: it must be at least 1.")
    layout = job.layout
    size = microbatches * layout.micro_batch_size * layout.data_parallel_size
    return replace(job, layout=replace(layout, global_batch_size=size))


def _require_rank(job: Job, rank: int) -> None:
    from steptally.errors import InputError

    if not 0 <= rank < job.layout.world_size:
        raise InputError(
            f"rank is {rank}, but the job has {job.layout.world_size} ranks: use 0 to "
            f"{job.layout.world_size - 1}."
        )


def _require_directory(save: Path) -> None:
    """Make it now: a rehearsal may take minutes, and should not fail behind them."""
    import os

    from steptally.errors import InputError

    try:
        save.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(save, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is not None:
        raise InputError(
            f"--save is {save}, which cannot be written ({reason}): name a directory on a disk "
            f"that has room and may be written."
        )


def _weights(text: str | None, job: Job) -> tuple[float, ...] | None:
    """Numbers separated by commas or spaces, in the text or in the file that it names."""
    if text is None:
        return None
    from pathlib import Path

    from steptally.errors import InputError

    if job.architecture.num_experts is None:
        raise InputError(f"--tokens-per-expert is given, but {job.source} has no experts.")
    path = Path(text)
    try:
        content = path.read_text() if path.is_file() else text
        weights = tuple(float(number) for number in content.replace(",", " ").split())
    except (OSError, ValueError) as error:
        raise InputError(
            f"--tokens-per-expert is {text!r}, which is neither a file of numbers nor numbers "
            f"separated by commas ({error})."
        ) from error
    if not weights or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise InputError(
            f"--tokens-per-expert is {text!r}: give one number of at least 0 for each expert, not "
            f"all 0."
        )
    return weights


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rehearsing programs", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
