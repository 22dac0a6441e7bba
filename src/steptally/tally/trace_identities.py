"""What makes two rows of a trace's accounts the same line; see `identities`.

Two recordings hold other numbers of steps: durations of recordings are compared as they are, those
of kernels in all and as medians. Names of kernels are those of both profilers' runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from steptally.tally.identity import Entry, Identity, Quantity, entry_of

_PARTS_OF_TIME = (
    *("busy_ns", "compute_ns", "communication_ns", "overlap_ns"),
    *("exposed_ns", "idle_ns"),
)
# Of a device's recording only: CPU ranks have none.
_OF_A_DEVICE = ("copies_ns", "copies_overlap_ns", "graph_ns")


def _ns(*names: str, share_of: str = "", combine: Any = "median") -> tuple[Quantity, ...]:
    return tuple(
        Quantity(name=name, unit="ns", combine=combine, share_of=share_of) for name in names
    )


def _counts(*names: str, unit: str = "call") -> tuple[Quantity, ...]:
    return tuple(Quantity(name=name, unit=unit, combine="sum") for name in names)


def _found(rows: Sequence[Any]) -> Iterable[Entry]:
    return (entry_of(row) for row in rows if row.verdict != "good")


def group_times(rows: Sequence[Any]) -> Iterable[Entry]:
    """The groups of each row of time, with its rank and step."""
    return (
        {"rank": row.rank, "step": row.step, **entry_of(group)}
        for row in rows
        for group in row.groups
    )


_OF_GROUPS = Identity(
    keys=("rank", "group"),
    quantities=(
        *_ns("exposed_ns", "exposed_alone_ns", "communication_ns", "overlap_ns"),
        Quantity(name="instances", unit="call", combine="median"),
    ),
    words=("axis", "size"),
    left_out=("step",),
    absent_is_zero=False,
    entries=group_times,
)
TIME: tuple[Identity, ...] = (
    Identity(
        keys=("rank",),
        quantities=(*_ns("span_ns"), *_ns(*_PARTS_OF_TIME, share_of="span_ns")),
        left_out=("step", "groups", "pairs", "partial", *_OF_A_DEVICE),
        absent_is_zero=False,
    ),
    _OF_GROUPS,
)

TRACE_IDENTITIES: dict[str, tuple[Identity, ...]] = {
    "recording": (
        Identity(
            keys=("rank",),
            quantities=(
                *_ns("span_ns"),
                *_ns(*_PARTS_OF_TIME, *_OF_A_DEVICE, share_of="span_ns"),
            ),
            left_out=("step", "groups", "pairs", "partial"),
            absent_is_zero=False,
        ),
        _OF_GROUPS,
    ),
    "partial_steps": (
        Identity(
            keys=("rank", "partial"),
            quantities=(
                *_ns("span_ns"),
                *_ns(*_PARTS_OF_TIME, *_OF_A_DEVICE, share_of="span_ns"),
            ),
            left_out=("step", "groups", "pairs"),
            absent_is_zero=False,
        ),
    ),
    "sources": (
        Identity(
            keys=("rank",),
            quantities=(*_counts("events", "device_events", unit=""),),
            words=("steps", "world_size"),
            left_out=("source", "size_bytes", "device", "process"),
            absent_is_zero=False,
        ),
    ),
    "gaps": (
        Identity(
            keys=("rank",),
            quantities=(
                *_ns("idle_ns"),
                *_ns(
                    *("host_ns", "communication_ns", "dependency_ns", "turnaround_ns"),
                    *("no_work_ns", "untold_ns"),
                    share_of="idle_ns",
                ),
                *_ns("span_ns", "short_kernels_ns", "recoverable_ns"),
                *_counts("gaps", unit=""),
                *_counts("kernels", "short_kernels", "graph_launches", "unseen_replays"),
            ),
            absent_is_zero=False,
        ),
    ),
    "kernel_families": (
        Identity(
            keys=("family",),
            quantities=(*_ns("total_ns", combine="sum"), *_counts("count")),
            left_out=("share", "rank"),
        ),
    ),
    "kernels": (
        Identity(
            keys=("family", "name"),
            quantities=(
                *_ns("total_ns", combine="sum"),
                *_counts("count"),
                *_ns("median_ns", "min_ns", "max_ns"),
                Quantity(name="flops", unit="FLOP"),
                Quantity(name="bytes", unit="byte"),
                Quantity(name="flops_per_s", unit="FLOP/s", combine="median"),
                Quantity(name="bytes_per_s", unit="byte/s", combine="median"),
            ),
            words=("dtype", "bound"),
            left_out=(
                *("share", "rank", "shaped", "shaped_ns"),
                *("intensity", "peak_share", "roof_share"),  # of a device
            ),
        ),
    ),
    "fusion": (
        Identity(
            keys=("chain",),
            quantities=(
                *_ns("total_ns", combine="sum"),
                *_counts("count"),
                Quantity(name="saved_bytes", unit="byte"),
            ),
            left_out=("rank",),
            absent_is_zero=False,
        ),
    ),
    "contention": (
        Identity(
            keys=("rank", "name", "launch_shape", "operator_flops"),
            quantities=(
                Quantity(name="factor", unit="", combine="median"),
                *_ns("overlapped_median_ns", "alone_median_ns", "lengthened_ns"),
                *_counts("overlapped", "alone"),
            ),
            absent_is_zero=False,
        ),
    ),
    "net_gain": (
        Identity(
            keys=("rank",),
            quantities=(
                *_ns("net_gain_ns", "hidden_ns", "lengthened_ns"),
                Quantity(name="factor", unit="", combine="median"),
            ),
            left_out=("covered_share",),
            absent_is_zero=False,
        ),
    ),
    "trust": (
        Identity(
            keys=("rank", "check"),
            quantities=(*_counts("count", unit=""), *_ns("duration_ns")),
            words=("verdict",),
            left_out=("of", "finding", "affects"),
            entries=_found,
            entries_note="tests that found nothing are left out",
        ),
    ),
}
