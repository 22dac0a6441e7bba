"""A rank's kernels by name and by family: counts, durations, and what the hardware made of them.

FLOPs and bytes rest on recorded shapes (`kernel_shapes`), rates on those runs alone whose shapes
are told. The roofline is min(peak, intensity · memory bandwidth) of a named device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from steptally.job.device import Device
from steptally.tally import FamilyRow, KernelRow
from steptally.trace.dtypes import short_dtype
from steptally.trace.kind_rules import FAMILIES
from steptally.trace.kinds import Rules
from steptally.trace.schema import KINDS

# In alphabetical order, so that they sort as texts do.
_FAMILY = pl.Enum(sorted({*FAMILIES, *KINDS, "memcpy"}))
_TENSOR_FLOAT = ("tf32", "s1688", "TF32")


def with_families(work: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """`work` with the column `family`: of compute that of its name, of all else its kind."""
    names = work["name"].dtype.categories  # type: ignore[attr-defined]
    by_name = [rules.family(name) for name in names]
    by_kind = ["memcpy" if kind == "copy" else kind for kind in KINDS]
    of_name = pl.Series(by_name, dtype=_FAMILY).gather(work["name"].to_physical())
    of_kind = pl.Series(by_kind, dtype=_FAMILY).gather(work["kind"].to_physical())
    is_kernel = work["kind"] == "compute"
    return work.with_columns(family=of_name.fill_null("other").zip_with(is_kernel, of_kind))


def kernel_rows(work: pl.DataFrame, rank: int) -> list[KernelRow]:
    """One row for each name, the longest in all first.

    `work` has the columns of `kernel_shapes` and `operand_sizes`, and `family`. Products have FLOPs
    and bytes, kernels that only move tensors have bytes.
    """
    kernels = _kernels(work).with_columns(bytes=pl.coalesce("bytes", "moved_bytes"))
    whole_ns = int(kernels["duration_ns"].cast(pl.Int128).sum())
    shaped = pl.any_horizontal(pl.col("flops", "bytes").is_not_null())
    grouped = kernels.group_by("name", "family").agg(
        count=pl.len(),
        total_ns=pl.col("duration_ns").cast(pl.Int128).sum(),
        median_ns=pl.col("duration_ns").median().round().cast(pl.Int64),
        min_ns=pl.col("duration_ns").min(),
        max_ns=pl.col("duration_ns").max(),
        shaped=shaped.sum(),
        shaped_ns=pl.col("duration_ns").filter(shaped).cast(pl.Int128).sum(),
        flops=pl.col("flops").cast(pl.Int128).sum(),
        computed=pl.col("flops").is_not_null().sum(),
        bytes=pl.col("bytes").cast(pl.Int128).sum(),
        sized=pl.col("bytes").is_not_null().sum(),
        dtype=pl.col("dtype").drop_nulls().mode().sort().first(),
    )
    return [
        with_rate(
            KernelRow(
                rank=rank,
                share=row["total_ns"] / whole_ns if whole_ns else 0.0,
                flops=row["flops"] if row["shaped"] == row["computed"] > 0 else None,
                bytes=row["bytes"] if row["shaped"] == row["sized"] > 0 else None,
                dtype=short_dtype(row["dtype"] or ""),
                **{name: row[name] for name in _COUNTED},
            )
        )
        for row in grouped.sort("total_ns", "name", descending=[True, False]).iter_rows(named=True)
    ]


_COUNTED = ("name", "family", "count", "total_ns", "median_ns", "min_ns", "max_ns", "shaped",
            "shaped_ns")  # fmt: skip


def family_rows(work: pl.DataFrame, rank: int) -> list[FamilyRow]:
    """One row for each family of kernels and each kind of copy, the longest first."""
    timed = work.select("family", duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    whole_ns = int(timed["duration_ns"].cast(pl.Int128).sum())
    grouped = timed.group_by("family").agg(
        count=pl.len(), total_ns=pl.col("duration_ns").cast(pl.Int128).sum()
    )
    return [
        FamilyRow(
            rank=rank,
            family=family,
            count=count,
            total_ns=total_ns,
            share=total_ns / whole_ns if whole_ns else 0.0,
        )
        for family, count, total_ns in grouped.sort(
            "total_ns", "family", descending=[True, False]
        ).iter_rows()
    ]


def on_device(rows: Iterable[KernelRow], device: Device) -> tuple[list[KernelRow], list[str]]:
    """The rows with their place on the roofline of `device`, and refusals of what is impossible.

    A rate above the peak means another device, or shapes that are not the kernel's: it is refused.
    """
    placed, refusals = [], []
    for row in rows:
        row = _on_roofline(row, device)
        if row.peak_share is not None and row.peak_share > 1:
            refusals.append(
                f"the rate of {row.name}: {100 * row.peak_share:.0f} % of the {row.dtype} peak of "
                f"{device.name} is impossible; was it recorded on another device (--device)?"
            )
            row = replace(row, peak_share=None, roof_share=None, bound=None)
        placed.append(row)
    return placed, refusals


def _kernels(work: pl.DataFrame) -> pl.DataFrame:
    is_kernel = work["kind"].is_in(("compute", "communication"))
    return work.select(
        "name", "family", "flops", "bytes", "moved_bytes", "dtype",
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
    ).filter(is_kernel)  # fmt: skip


def with_rate(row: KernelRow) -> KernelRow:
    """The row with its rate and intensity, over the runs whose shapes are told."""
    if not row.shaped_ns:
        return row
    return replace(
        row,
        flops_per_s=row.flops / row.shaped_ns * 1e9 if row.flops else None,
        bytes_per_s=row.bytes / row.shaped_ns * 1e9 if row.bytes else None,
        intensity=row.flops / row.bytes if row.flops and row.bytes else None,
    )


def _on_roofline(row: KernelRow, device: Device) -> KernelRow:
    """The row against the device's peak, and against min(peak, intensity · bandwidth).

    A kernel that only moves tensors has the bandwidth alone above it.
    """
    bandwidth = device.memory_bandwidth_bytes_per_s
    if row.flops is None:
        if row.bytes_per_s is None or not bandwidth:
            return row
        return _under(row, row.bytes_per_s / bandwidth, "memory")
    peak, rate = device.dense_peak_flops_per_s.get(_peak_dtype(row)), row.flops_per_s
    if rate is None or not peak:
        return row
    row = replace(row, peak_share=rate / peak)
    if not row.intensity or not bandwidth:
        return row
    memory_roof = row.intensity * bandwidth
    bound = "memory" if memory_roof < peak else "compute"
    return _under(row, rate / min(peak, memory_roof), bound)


def _under(row: KernelRow, share: float, bound: str) -> KernelRow:
    """Above the roof of memory a kernel can be: small tensors stay in the cache."""
    is_cached = bound == "memory" and share > 1
    return replace(row, roof_share=share, bound="cache" if is_cached else bound)


def _peak_dtype(row: KernelRow) -> str:
    """Products of fp32 operands may run on TF32 units: the kernel's name tells."""
    tensor_float = row.dtype == "fp32" and any(word in row.name for word in _TENSOR_FLOAT)
    return "tf32" if tensor_float else row.dtype or ""
