"""The predicted tally of a job's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptally.job import Device, Job
from steptally.job.training_faults import training_faults
from steptally.predict.memory.account import (
    RankMemory,
    memory_of_ranks,
    memory_rows,
    peak_rows,
    timeline_rows,
)
from steptally.predict.memory.changes import fits, predict_changes
from steptally.predict.memory.limits import memory_warnings, refuse_unmodelled
from steptally.predict.memory.outside import RESERVE
from steptally.tally import PEAK_ALLOCATED, Figure, MemoryChangeRow, Row, Tally

LARGEST = "on the rank that has most"


def memory_tally(job: Job, rank: int | None = None, device: Device | None = None) -> Tally:
    """Accounts `memory`, `memory_peaks`, `memory_timeline`, and `memory_changes` where it helps.

    The timeline is of `rank`, else of the rank that needs most; so are the rows of the others if
    `rank` is given. `memory_changes` are left out of a job that fits. Raises `InputError` for a
    rank that the job does not have, or what `memory.limits` refuses.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128})
    >>> memory_tally(job).summary["peak_memory_bytes_max"].unit
    'byte'
    """
    refuse_unmodelled(job)
    ranks = memory_of_ranks(job, None, device)
    worst = max(ranks, key=lambda one: one.total_bytes)
    shown = ranks if rank is None else memory_of_ranks(job, rank, device)
    told = worst if rank is None else shown[0]
    fitting = fits(worst.total_bytes, device)
    changes: list[MemoryChangeRow] = [] if fitting else predict_changes(job, device)
    accounts: dict[str, Sequence[Row]] = {
        "memory": memory_rows(job, shown),
        "memory_peaks": peak_rows(job, shown),
        "memory_timeline": timeline_rows(job, told),
    }
    if changes:
        accounts["memory_changes"] = changes
    return Tally(
        basis="predicted",
        job=job.as_json(),
        convention="allocated by torch (max_memory_allocated) but for lifetime `outside`",
        summary=_figures(ranks, worst, device),
        accounts=accounts,
        warnings=(
            *job.notes,
            *training_faults(job),
            *memory_warnings(job),
            *_tightness(worst, device),
            *_no_single_change(fitting, changes),
        ),
        refusals=_refusals(device),
    )


def _figures(
    ranks: Sequence[RankMemory], worst: RankMemory, device: Device | None
) -> dict[str, Figure]:
    stages = [one.stage for one in ranks]
    figures = {
        "peak_memory_bytes_max": _peak(
            max(stage.peak for stage in stages), "every step after the first"
        ),
        "first_step_peak_memory_bytes_max": _peak(
            max(stage.first_step_peak for stage in stages),
            "before and while the optimizer makes its state",
        ),
        "checkpoint_peak_memory_bytes_max": _peak(
            max(stage.checkpoint_peak for stage in stages), "between two steps"
        ),
        "device_memory_needed_bytes_max": _bytes(
            worst.total_bytes,
            f"rank {worst.rank}: its highest peak, and what is outside the allocator",
        ),
    }
    if device is None or device.memory_bytes is None:
        return figures
    margin = device.memory_bytes - worst.total_bytes
    return {
        **figures,
        "memory_margin_bytes": _bytes(
            margin, f"of {device.memory_bytes / 2**30:g} GiB nominal, {device.name}"
        ),
        "fits": Figure(
            value=margin >= 0,
            unit="true or false",
            basis="predicted",
            origin=f"margin on {device.name}; {device.source}",
        ),
    }


def _peak(value: int, when: str) -> Figure:
    return replace(_bytes(value, f"{LARGEST}; {when}"), convention=PEAK_ALLOCATED)


def _bytes(value: int, origin: str) -> Figure:
    return Figure(value=value, unit="byte", basis="predicted", origin=origin)


def _tightness(worst: RankMemory, device: Device | None) -> tuple[str, ...]:
    """A job that fits only where the allocator keeps less than usual in reserve."""
    if fits(worst.total_bytes, device) is not False:
        return ()
    reserve = round(RESERVE.value * worst.stage.peak)
    if not fits(worst.total_bytes - reserve, device):
        return ()
    sentence = (
        f"it fits without the allocator's usual reserve of {reserve / 2**30:.1f} GiB: "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may be enough."
    )
    return (sentence,)


def _no_single_change(fitting: bool | None, changes: Sequence[MemoryChangeRow]) -> tuple[str, ...]:
    """Where nothing alone helps enough, what helps most."""
    if fitting is not False or any(change.fits for change in changes):
        return ()
    if not changes:
        return ("no single change lowers what it needs: it needs more devices.",)
    most = min(changes, key=lambda change: change.total_bytes)
    sentence = (
        f"no single change makes it fit: {most.name} saves most and leaves "
        f"{most.total_bytes / 2**30:.1f} GiB; try it with --set, and what helps beside it."
    )
    return (sentence,)


def _refusals(device: Device | None) -> tuple[str, ...]:
    if device is None:
        return ("fits, margin: the job names no device; pass --device NAME (`steptally devices`)",)
    if device.memory_bytes is None:
        return (f"fits, margin: the catalogue has no memory size for {device.name}",)
    return ()
