"""Kernels of many ranks as one account, with memory that does not grow with the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median_low

from steptally.measure.kernels import with_rate
from steptally.tally import FamilyRow, FusionRow, KernelRow

# Chains kept while ranks are added; more than are ever shown, so that the longest are exact.
MOST_CHAINS = 2000


@dataclass(slots=True)
class KernelMerge:
    """The kernels added so far, by name and family; a median is that of the ranks' medians."""

    merged: dict[tuple[str, str], KernelRow] = field(default_factory=dict)
    medians: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, rows: Iterable[KernelRow]) -> None:
        """Take the kernels of one rank."""
        for row in rows:
            key = (row.name, row.family)
            self.medians.setdefault(key, []).append(row.median_ns)
            before = self.merged.get(key)
            self.merged[key] = row if before is None else _together(before, row)

    def rows(self) -> list[KernelRow]:
        """The merged kernels, the longest in all first."""
        whole_ns = sum(row.total_ns for row in self.merged.values())
        rows = [
            with_rate(
                replace(
                    row,
                    median_ns=median_low(self.medians[key]),
                    share=row.total_ns / whole_ns if whole_ns else 0.0,
                )
            )
            for key, row in self.merged.items()
        ]
        return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def merged_families(families: dict[str, FamilyRow], rows: Iterable[FamilyRow]) -> None:
    """Add one rank's families to those so far; their shares are left to the caller."""
    for row in rows:
        before = families.get(row.family)
        families[row.family] = (
            row
            if before is None
            else replace(
                before,
                rank=None,
                count=before.count + row.count,
                total_ns=before.total_ns + row.total_ns,
            )
        )


def merged_fusion(chains: dict[tuple[str, ...], FusionRow], rows: Iterable[FusionRow]) -> None:
    """Add one rank's chains to those so far, of which the longest are kept."""
    for row in rows:
        before = chains.get(row.chain)
        chains[row.chain] = (
            row
            if before is None
            else replace(
                before,
                rank=None,
                count=before.count + row.count,
                total_ns=before.total_ns + row.total_ns,
                saved_bytes=_sum(before.saved_bytes, row.saved_bytes),
            )
        )
    if len(chains) > MOST_CHAINS:
        for chain in sorted(chains, key=lambda chain: chains[chain].total_ns)[:-MOST_CHAINS]:
            del chains[chain]


def _together(before: KernelRow, row: KernelRow) -> KernelRow:
    """Two ranks' rows of one kernel; bytes are known where they are of all shaped runs."""
    unknown = any(one.shaped and one.bytes is None for one in (before, row))
    return replace(
        before,
        rank=None,
        count=before.count + row.count,
        total_ns=before.total_ns + row.total_ns,
        min_ns=min(before.min_ns, row.min_ns),
        max_ns=max(before.max_ns, row.max_ns),
        shaped=before.shaped + row.shaped,
        shaped_ns=before.shaped_ns + row.shaped_ns,
        flops=_sum(before.flops, row.flops),
        bytes=None if unknown else _sum(before.bytes, row.bytes),
        dtype=before.dtype or row.dtype,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    """The sum of what is known; None where neither is."""
    if one is None or other is None:
        return one if other is None else other
    return one + other
