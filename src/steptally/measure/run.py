"""The measured tally of a run directory: from its steps, and from every trace that is there.

    tally = measure_run(RunDirectory(Path("runs/2026-11-29_demo")))

A run that was killed, or traced on some ranks only, is measured as far as it goes: what is missing
is named in the tally's warnings and refusals, never filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steptally.errors import InputError
from steptally.measure.rank import RankAccount, measure_rank
from steptally.measure.steps import (
    Steps,
    memory_rows,
    read_steps,
    step_figures,
    step_refusals,
    step_warnings,
)
from steptally.measure.summary import common_steps, executed_flops, time_figures
from steptally.tally import PEAK_ALLOCATED, Row, Tally
from steptally.tally.ranges import number_ranges
from steptally.trace.run_directory import RunDirectory


def measure_run(directory: RunDirectory) -> Tally:
    """Account for a recorded run: time, products, traffic, memory and steps.

    Raises `InputError` where there is no run directory of a known format.
    """
    manifest = directory.read_manifest()
    world_size: int = manifest["world_size"]
    steps = read_steps(directory.read_steps(), world_size)
    ranks, trace_warnings = _measure_ranks(directory, manifest, world_size)
    flops = executed_flops(ranks, world_size)
    job = manifest.get("job")
    kind = _memory_kind(manifest)
    injected = [row["spec"] for row in manifest.get("injected") or ()]
    return Tally(
        basis="measured",
        job=job if isinstance(job, dict) else {},
        summary={**step_figures(steps, kind), **flops.figures, **time_figures(ranks)},
        accounts=_present(
            {
                **_traced_accounts(ranks),
                "memory": memory_rows(steps, kind),
                "steps": [line.row() for line in steps.lines],
            }
        ),
        warnings=[
            *injected_warning(injected),
            *_how_it_ended(manifest),
            *step_warnings(steps),
            *trace_warnings,
            *_untraced(steps, ranks),
            *flops.warnings,
        ],
        refusals=[*step_refusals(steps), *_no_traces(ranks), *flops.refusals],
        injected=injected,
    )


def _measure_ranks(
    directory: RunDirectory, manifest: Mapping[str, Any], world_size: int
) -> tuple[list[RankAccount], list[str]]:
    """The account of every rank whose trace can be read, and what to say about the others."""
    hosts = _hosts(manifest)
    ranks, warnings = [], []
    for rank, path in directory.traces().items():
        try:
            account = measure_rank(path, rank, hosts)
        except InputError as error:
            warnings.append(str(error))
            continue
        ranks.append(account)
        warnings += account.warnings
    missing = set(range(world_size)) - set(directory.traces())
    if missing and ranks:
        warnings.append(f"rank {number_ranges(missing)} left no trace: the accounts leave it out")
    return ranks, warnings


def _traced_accounts(ranks: Sequence[RankAccount]) -> dict[str, Sequence[Row]]:
    """Every traced step's time; the products and traffic of the first step that all recorded."""
    common = common_steps(ranks)
    gemms: list[Row] = []
    traffic: list[Row] = []
    for rank in ranks:
        step = common[0] if common else min(rank.gemms, default=None)
        if step is not None:
            gemms += rank.gemms[step].rows
            traffic += rank.traffic.get(step, ())
    return {
        "time": [row for rank in ranks for row in rank.times],
        "gemms": gemms,
        "traffic": traffic,
    }


def _untraced(steps: Steps, ranks: Sequence[RankAccount]) -> list[str]:
    """Steps that ran under the profiler and are in no trace: the window was cut short."""
    warnings = []
    for rank in ranks:
        traced = {line.step for line in steps.lines if line.traced and line.rank == rank.rank}
        lost = traced - {row.step for row in rank.times}
        if lost:
            warnings.append(
                f"step {number_ranges(lost)} of rank {rank.rank} was traced, but its trace does "
                "not hold it"
            )
    return warnings


def _no_traces(ranks: Sequence[RankAccount]) -> list[str]:
    if ranks:
        return []
    why = (
        "time, gemms, traffic: no rank left a trace that can be read; trace at least one step "
        "(--traced-steps, or traced_steps of steptally.Recorder)"
    )
    return [why]


def injected_warning(specs: Sequence[str]) -> list[str]:
    """What to say of a run into which faults were injected; nothing of any other."""
    if not specs:
        return []
    sentence = (
        f"faults were injected into this run on purpose ({', '.join(specs)}): its times are not "
        f"those of a clean run, and compare only with a run that has the same faults"
    )
    return [sentence]


def _how_it_ended(manifest: Mapping[str, Any]) -> list[str]:
    status = manifest.get("status")
    if status == "finished":
        return []
    return [f"the run is not finished: its manifest says {status!r}; what was recorded is measured"]


def _present(accounts: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    return {name: rows for name, rows in accounts.items() if rows}


def _hosts(manifest: Mapping[str, Any]) -> dict[int, str]:
    """The host of each rank, as far as the manifest tells."""
    rows = manifest.get("ranks") or []
    return {row["rank"]: row["host"] for row in rows if row.get("host")}


def _memory_kind(manifest: Mapping[str, Any]) -> str:
    """What the recorder's peak is of: torch's allocations on a GPU, else the process."""
    rows = manifest.get("ranks") or []
    on_gpu = any(row.get("device") not in (None, "cpu") for row in rows)
    return PEAK_ALLOCATED if on_gpu else "peak resident memory of the process"
