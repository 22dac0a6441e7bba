"""One program, in this process: the only part of a rehearsal that imports torch."""

from __future__ import annotations

from pathlib import Path

from steptally.errors import InputError, SteptallyError
from steptally.job import Job
from steptally.rehearse.accounts import Counts, count
from steptally.rehearse.microbatches import extrapolate, rehearsed_counts
from steptally.rehearse.quiet import quiet
from steptally.rehearse.rehearsed import Program, Rehearsed
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import Rehearsable

quiet()  # before megatron-core is imported, which warns of what is not installed

from steptally.rehearse.program import rehearse_rank  # noqa: E402
from steptally.rehearse.programs import distinct_programs, program_of  # noqa: E402


def choose_programs(job: Job, routing: Routing, rank: int | None) -> list[Program]:
    """The program of one rank, or all distinct ones where `rank` is None."""
    if rank is None:
        return distinct_programs(job, routing)
    return [program_of(job, rank, routing)]


def rehearse_program(
    rehearsable: Rehearsable,
    program: Program,
    routing: Routing,
    operations: Path | None = None,
) -> Rehearsed:
    """Run one program: with the job's micro-batches, or with two smaller numbers of them.

    `operations` is a directory for the table of operations of the last run. Raises `InputError`
    where megatron-core refuses the job.
    """
    job = rehearsable.job
    chosen = rehearsed_counts(job)
    runs = [
        _run(rehearsable, program, routing, number, operations if number == chosen[-1] else None)
        for number in chosen
    ]
    counts = runs[-1]
    if len(runs) == 2:
        counts = extrapolate(runs[0], runs[1], job.layout.num_microbatches)
    return Rehearsed(program=program, counts=counts, microbatches=chosen)


def _run(
    rehearsable: Rehearsable,
    program: Program,
    routing: Routing,
    microbatches: int,
    operations: Path | None,
) -> Counts:
    try:
        rehearsal = rehearse_rank(rehearsable, program.rank, routing, microbatches)
    except SteptallyError:
        raise
    except Exception as error:
        raise InputError(_refusal(rehearsable.job, program.rank, error)) from error
    if operations is not None:
        from steptally.rehearse.op_table import write_operations

        write_operations(operations, rehearsal)
    return count(rehearsal)


def _refusal(job: Job, rank: int, error: Exception) -> str:
    """What megatron-core says, in one sentence: its checks are assertions deep inside."""
    said = " ".join(str(error).split()) or "no reason given"
    shortened = said if len(said) <= 300 else f"{said[:300]}…"
    return (
        f"{job.source}: megatron-core 0.16.1 cannot run rank {rank} of this job: "
        f"{type(error).__name__}: {shortened.rstrip('.')}. A run would fail alike; change the "
        f"setting that it names."
    )
