"""The accounts of a device's work as tables: idle time, kernels, fusion, contention."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.report.kernel_names import short_kernel
from steptally.report.quantity import duration, printable, quantity, share
from steptally.report.table import NOTHING, Table
from steptally.tally import (
    ContentionRow,
    FamilyRow,
    FusionRow,
    GapRow,
    KernelRow,
    NetGainRow,
)

_NAMES_IN_CHAIN = 4
# Of the kernels and chains of a trace most are short: the rest is in the JSON.
MOST_KERNELS = 12
MOST_CHAINS = 6


def gap_table(rows: Sequence[GapRow]) -> Table:
    """What each device waited for while idle."""
    return Table(
        title="Idle time by what the device waited for",
        note="host: the next launch was called after the device became idle; no work: the same, "
        "after the host had waited for the device; dependency: queued behind other work; untold: "
        "the launch, or a graph's kernels, are not in the recording",
        columns=(
            *("rank", "idle", "host", "communication", "dependency", "no work", "untold"),
            *("CPU-bound", "kernels < 10 µs", "a graph could save"),
        ),
        text_columns=0,
        least_wanted=("kernels < 10 µs", "no work"),
        rows=tuple(
            (
                str(row.rank),
                *map(
                    duration,
                    (
                        *(row.idle_ns, row.host_ns, row.communication_ns),
                        *(row.dependency_ns, row.no_work_ns, row.untold_ns),
                    ),
                ),
                share(row.host_ns, row.span_ns),
                share(row.short_kernels, row.kernels),
                NOTHING if row.recoverable_ns is None else f"≤ {duration(row.recoverable_ns)}",
            )
            for row in rows
        ),
    )


def family_table(rows: Sequence[FamilyRow]) -> Table:
    """Kernels and copies by family."""
    return Table(
        title="Kernels by family",
        note="summed durations over all ranks read: those of several streams count each",
        columns=("family", "count", "in all", "share"),
        text_columns=1,
        rows=tuple(
            (
                printable(row.family),
                f"{row.count:,}",
                duration(row.total_ns),
                f"{100 * row.share:.1f} %",
            )
            for row in rows
        ),
    )


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """Kernels by name, the longest in all first."""
    return Table(
        title="Kernels",
        note="over all ranks read; rates are of the runs whose shapes are told",
        columns=(
            *("kernel", "family", "dtype", "bound"),
            *(
                "count",
                "in all",
                "share",
                "median",
                "max",
                "FLOP/s",
                "bytes/s",
                "FLOP/byte",
                "of peak",
            ),
            "of roof",
        ),
        text_columns=4,
        least_wanted=(
            *(
                "max",
                "FLOP/byte",
                "dtype",
                "of roof",
                "of peak",
                "bound",
                "bytes/s",
                "FLOP/s",
                "family",
            ),
        ),
        rows=tuple(
            (
                short_kernel(row.name),
                printable(row.family),
                printable(row.dtype or NOTHING),
                printable(row.bound or NOTHING),
                f"{row.count:,}",
                duration(row.total_ns),
                f"{100 * row.share:.1f} %",
                duration(row.median_ns),
                duration(row.max_ns),
                _or_nothing(row.flops_per_s, "FLOP/s"),
                _or_nothing(row.bytes_per_s, "byte/s"),
                _or_nothing(row.intensity, ""),
                _or_nothing(row.peak_share, "1"),
                _or_nothing(row.roof_share, "1"),
            )
            for row in rows[:MOST_KERNELS]
        ),
        left_out=max(0, len(rows) - MOST_KERNELS),
    )


def fusion_table(rows: Sequence[FusionRow]) -> Table:
    """Chains of memory-bound kernels."""
    return Table(
        title="Fusion candidates",
        note="memory-bound kernels that follow each other on a stream; saved: bytes between them "
        "that one kernel would neither write nor read, where shapes tell",
        columns=("chain", "kernels", "runs", "in all", "saved"),
        text_columns=1,
        rows=tuple(
            (
                _chain(row.chain),
                f"{len(row.chain):,}",
                f"{row.count:,}",
                duration(row.total_ns),
                _or_nothing(row.saved_bytes, "byte"),
            )
            for row in rows[:MOST_CHAINS]
        ),
        left_out=max(0, len(rows) - MOST_CHAINS),
    )


def _chain(names: Sequence[str]) -> str:
    shown = " → ".join(short_kernel(name, 36) for name in names[:_NAMES_IN_CHAIN])
    return shown + (" → …" if len(names) > _NAMES_IN_CHAIN else "")


def contention_table(rows: Sequence[ContentionRow]) -> Table:
    """Kernels measured under communication and alone."""
    return Table(
        title="Contention: the same kernels under communication and alone",
        note="factor = median under communication / median alone, same name and launch shape",
        columns=(
            *("kernel", "launch shape", "rank", "under", "alone"),
            *("median under", "median alone", "factor", "lengthened"),
        ),
        text_columns=2,
        least_wanted=("median alone", "median under", "launch shape", "rank"),
        rows=tuple(
            (
                short_kernel(row.name),
                printable(row.launch_shape),
                str(row.rank),
                f"{row.overlapped:,}",
                f"{row.alone:,}",
                duration(row.overlapped_median_ns),
                duration(row.alone_median_ns),
                f"{row.factor:.3f}",
                duration(row.lengthened_ns),
            )
            for row in rows[:MOST_CHAINS]
        ),
        left_out=max(0, len(rows) - MOST_CHAINS),
    )


def net_gain_table(rows: Sequence[NetGainRow]) -> Table:
    """What overlap was worth."""
    return Table(
        title="Net gain of overlap",
        note="communication hidden − compute lengthened; measured on the part of overlapped "
        "compute that runs both ways, of the rest the lengthening is not known",
        columns=("rank", "hidden", "lengthened", "net gain", "factor", "measured on"),
        text_columns=0,
        rows=tuple(
            (
                str(row.rank),
                duration(row.hidden_ns),
                duration(row.lengthened_ns),
                duration(row.net_gain_ns),
                f"{row.factor:.3f}",
                f"{100 * row.covered_share:.1f} %",
            )
            for row in rows
        ),
    )


def _or_nothing(value: float | None, unit: str) -> str:
    return NOTHING if value is None else quantity(value, unit)
