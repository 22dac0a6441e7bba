"""The rehearsed tally of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from steptally.job import Job
from steptally.rehearse.accounts import (
    gemm_rows,
    group_rows,
    memory_rows,
    moment_rows,
    traffic_rows,
)
from steptally.rehearse.rehearsed import Rehearsed
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import Rehearsable
from steptally.tally import (
    PEAK_ALLOCATED,
    Figure,
    FlopsRow,
    GemmRow,
    MemoryPeakRow,
    ProgramRow,
    Row,
    Tally,
)
from steptally.tally.ranges import number_ranges

ORIGIN = "megatron-core 0.16.1 on fake tensors"
MOST_RUNS = 4
PHASES = {"dgrad": "backward", "wgrad": "backward"}


def rehearsed_tally(
    job: Job, rehearsable: Rehearsable, rehearsed: Sequence[Rehearsed], routing: Routing
) -> Tally:
    """Accounts `programs`, `gemms`, `traffic`, `groups`, `memory…` and `substitutions`.

    With every distinct program, also `flops` over all ranks. `job` is the one that was asked for.
    """
    whole = sum(len(each.program.ranks) for each in rehearsed) == job.layout.world_size
    counts = [each.counts for each in rehearsed]
    gemms = [row for each in counts for row in gemm_rows(each)]
    accounts: dict[str, Sequence[Row]] = {
        "programs": [_program_row(each) for each in rehearsed],
        "gemms": gemms,
        "traffic": [row for each in counts for row in traffic_rows(job, each)],
        "groups": [row for each in counts for row in group_rows(job, each)],
        "memory": [row for each in rehearsed for row in memory_rows(each.counts, each.program.pp)],
        "memory_peaks": [_peak_row(each) for each in rehearsed],
        "memory_timeline": moment_rows(_largest(rehearsed).counts),
        "substitutions": list(rehearsable.substitutions),
    }
    if whole:
        accounts["flops"] = _flops_rows(rehearsed)
    return Tally(
        basis="rehearsed",
        job=job.as_json(),
        convention="executed; bytes of full tensors; allocated by torch, without what is outside",
        summary=_figures(rehearsed, whole),
        accounts={name: rows for name, rows in accounts.items() if rows},
        warnings=_warnings(job, rehearsable, routing),
        refusals=[] if whole else [_only_some_ranks(job)],
    )


def _program_row(each: Rehearsed) -> ProgramRow:
    counts = each.counts
    return ProgramRow(
        rank=each.program.rank,
        ranks=_ranks_in_words(each.program.ranks),
        rank_count=len(each.program.ranks),
        pp=each.program.pp,
        microbatches=each.microbatches,
        parameters=counts.parameters,
        operators=counts.operators,
        products=sum(counts.products.values()),
        collectives=sum(counts.collectives.values()),
        in_flight=counts.memory.in_flight,
    )


def _peak_row(each: Rehearsed) -> MemoryPeakRow:
    memory = each.counts.memory
    return MemoryPeakRow(
        rank=each.program.rank,
        ranks=_ranks_in_words(each.program.ranks),
        pp=each.program.pp,
        in_flight=memory.in_flight,
        event=memory.event,
        peak_bytes=memory.peak_bytes,
        first_step_peak_bytes=memory.first_step_peak_bytes,
    )


def _flops_rows(rehearsed: Sequence[Rehearsed]) -> list[FlopsRow]:
    """Executed FLOPs by module and phase, over all ranks."""
    executed: Counter[tuple[str, str]] = Counter()
    for each in rehearsed:
        for row in gemm_rows(each.counts):
            phase = PHASES.get(row.phase, row.phase)
            executed[row.name, phase] += row.flops * len(each.program.ranks)
    return [
        FlopsRow(name=name, phase=phase, useful=None, executed=flops)
        for (name, phase), flops in executed.items()
    ]


def _figures(rehearsed: Sequence[Rehearsed], whole: bool) -> dict[str, Figure]:
    largest = _largest(rehearsed)
    figures = {
        "peak_memory_bytes_max": _figure(
            largest.counts.memory.peak_bytes,
            "byte",
            f"rank {largest.program.rank}, {largest.counts.memory.event}; {ORIGIN}",
            PEAK_ALLOCATED,
        ),
        "traffic_bytes_per_step": _figure(
            sum(key.size_bytes * calls for key, calls in rehearsed[0].counts.collectives.items()),
            "byte",
            f"collectives of rank {rehearsed[0].program.rank} in one step; {ORIGIN}",
            "full tensors",
        ),
    }
    flops = {each.program.rank: _flops(gemm_rows(each.counts)) for each in rehearsed}
    if whole:
        total = sum(flops[each.program.rank] * len(each.program.ranks) for each in rehearsed)
        figures["flops_per_step_executed"] = _figure(
            total, "FLOP", f"matrix products of all ranks, from their shapes; {ORIGIN}", "executed"
        )
    else:
        figures["gemms_flops_per_step"] = _figure(
            flops[rehearsed[0].program.rank],
            "FLOP",
            f"all products of rank {rehearsed[0].program.rank} in one step; {ORIGIN}",
            "executed",
        )
    return figures


def _figure(value: int, unit: str, origin: str, convention: str) -> Figure:
    return Figure(value=value, unit=unit, basis="rehearsed", convention=convention, origin=origin)


def _flops(rows: Sequence[GemmRow]) -> int:
    return sum(row.flops for row in rows)


def _largest(rehearsed: Sequence[Rehearsed]) -> Rehearsed:
    """The program of the largest peak, whose passes are told."""
    return max(rehearsed, key=lambda each: each.counts.memory.peak_bytes)


def _warnings(job: Job, rehearsable: Rehearsable, routing: Routing) -> list[str]:
    found = list(job.notes)
    if job.unknown:
        names = ", ".join(list(job.unknown)[:8])
        found.append(f"settings that steptally does not know are not rehearsed: {names}")
    if job.architecture.num_experts is not None:
        stated = "balanced" if routing.weights is None else "as the tokens per expert given"
        found.append(f"routing is taken to be {stated}, the same on every rank and layer")
    bounded = [row.setting for row in rehearsable.substitutions if row.memory != "stands"]
    if bounded:
        found.append(
            f"memory is of the job as rehearsed, which differs in {', '.join(bounded)}: see "
            f"`substitutions`"
        )
    return found


def _only_some_ranks(job: Job) -> str:
    return (
        f"executed FLOPs and memory of all {job.layout.world_size:,} ranks: one program was "
        f"rehearsed; pass --stages for all"
    )


def _ranks_in_words(ranks: Sequence[int]) -> str:
    runs = number_ranges(ranks).split(", ")
    more = f" and {len(runs) - MOST_RUNS} more runs" if len(runs) > MOST_RUNS else ""
    return ", ".join(runs[:MOST_RUNS]) + more
