"""The memory account as tables: peaks of each stage, kinds of memory, and changes that help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from steptally.report.memory_bars import LIFETIMES
from steptally.report.quantity import printable, quantity
from steptally.report.table import NOTHING, Table
from steptally.tally import MemoryChangeRow, MemoryPeakRow, MemoryRow


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    """Bytes by lifetime and kind, from the rank that has least to the one that has most."""
    by_kind: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        by_kind[row.lifetime, row.name][row.rank] += row.bytes

    def line(lifetime: str, name: str, ranks: dict[int, int]) -> tuple[str, ...]:
        most = max(ranks, key=lambda rank: ranks[rank])
        sizes = (quantity(min(ranks.values()), "byte"), quantity(ranks[most], "byte"))
        return (printable(lifetime), printable(name), *sizes, str(most))

    at_peak = any(row.peak_bytes is not None for row in rows)
    return Table(
        title="Memory",
        note="what is alive at each rank's peak in a later step; adds up to the peak, but for "
        "`outside`"
        if at_peak
        else "of one rank; kinds of different lifetimes do not add up",
        columns=("lifetime", "kind", "least", "most", "on rank"),
        text_columns=2,
        rows=tuple(line(*kind, by_kind[kind]) for kind in sorted(by_kind, key=_lifetime_place)),
    )


def memory_peaks_table(rows: Sequence[MemoryPeakRow]) -> Table:
    """The peaks of each pipeline stage, and when they are reached."""
    return Table(
        title="Peaks by pipeline stage",
        note="bytes that torch has allocated at once on any one rank of the stage; outside are "
        "driver, context, NCCL and the allocator's reserve; needed is the highest peak and that",
        columns=(
            *("ranks", "highest in", "stage", "in flight", "first step", "later steps"),
            *("checkpoint", "outside", "needed"),
        ),
        text_columns=2,
        least_wanted=("highest in", "checkpoint", "outside"),
        rows=tuple(
            (
                printable(row.ranks),
                printable(row.event),
                str(row.pp),
                "+".join(map(str, row.in_flight)),
                quantity(row.first_step_peak_bytes, "byte"),
                quantity(row.peak_bytes, "byte"),
                _bytes_or_nothing(row.checkpoint_peak_bytes),
                _bytes_or_nothing(row.outside_bytes),
                _bytes_or_nothing(row.total_bytes),
            )
            for row in rows
        ),
    )


def memory_changes_table(rows: Sequence[MemoryChangeRow]) -> Table:
    """Single changes that lower the need, the cheapest that fit first."""
    return Table(
        title="Single changes that would help",
        note="each alone; needed is what the largest rank's device must have; FLOPs are the "
        "executed ones of a step over those of the job as it is",
        columns=("change", "fits", "costs", "needed", "FLOPs"),
        text_columns=3,
        rows=tuple(
            (
                printable(row.name),
                quantity(row.fits, ""),
                printable(row.cost or "–"),
                quantity(row.total_bytes, "byte"),
                f"{100 * row.difference:+.1f} %",
            )
            for row in rows
        ),
    )


def _bytes_or_nothing(size: int | None) -> str:
    return NOTHING if size is None else quantity(size, "byte")


def _lifetime_place(kind: tuple[str, str]) -> int:
    return LIFETIMES.index(kind[0]) if kind[0] in LIFETIMES else len(LIFETIMES)
