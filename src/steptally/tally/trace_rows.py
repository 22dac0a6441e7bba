"""Rows of the accounts that a trace fills: where time went, gaps, kernels, trust.

Times are integer nanoseconds, `rank` is the rank that the row is of.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """Communication of one process group inside one rank's step.

    `exposed_ns` = union(group) − union(group) ∩ union(compute). Groups may run at the same time,
    so their exposed times can add to more than the rank's; `exposed_alone_ns` is the part in which
    no other group communicates, and those do add up (with `shared` time) to the rank's. `axis` is
    Megatron's word for what the group joins (tp, cp, ep, dp, pp, or several: tp-cp), None where the
    group's name or ranks do not tell; `size` its number of ranks where the trace tells it.
    """

    group: str
    instances: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    exposed_alone_ns: int
    axis: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPair:
    """The time in which two process groups of one rank communicate at once."""

    groups: tuple[str, str]
    overlap_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """Where one rank's traced step went: span = compute + exposed + idle + what is left of busy.

    span: first start to last end; busy: union of all intervals; idle = span − busy; all in ns. Of
    busy, beside compute and exposed communication, is left what `copies_ns` (copies and memsets)
    and `graph_ns` (replays of whole graphs whose content the profiler does not show) cover alone.
    `copies_overlap_ns` = communication ∩ copies. `pairs` are the groups that overlap. `partial`
    says why a step is not whole (`before the first recorded step`), and is empty for one that is.
    """

    rank: int
    step: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    idle_ns: int
    groups: tuple[GroupTime, ...] = ()
    copies_ns: int = 0
    copies_overlap_ns: int = 0
    graph_ns: int = 0
    pairs: tuple[GroupPair, ...] = ()
    partial: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One recording: where it lies, and what it holds.

    `steps` tells what makes the steps: `ProfilerStep annotations`, `NVTX ranges`, `a period of 412
    kernels`, or `none`. `device` and `process` are set where one file holds several devices.
    """

    rank: int
    source: str
    size_bytes: int
    events: int
    device_events: int
    steps: str
    device: int | None = None
    process: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """What one device waited for while idle: idle = host + communication + dependency + no work
    + untold (docs/formulas/gaps.md).

    `turnaround_ns` is the part of `dependency_ns` between two pieces of one stream. `gaps` counts
    the idle intervals. `kernels` counts compute kernels, `short_kernels` those under 10 µs, which
    run for `short_kernels_ns`. `graph_launches` counts replays of CUDA graphs, `unseen_replays`
    those of which no kernel was recorded. `recoverable_ns` is the most that one more CUDA graph
    could recover, None where the trace cannot tell.
    """

    rank: int
    span_ns: int
    idle_ns: int
    host_ns: int
    communication_ns: int
    dependency_ns: int
    turnaround_ns: int
    no_work_ns: int
    untold_ns: int
    gaps: int
    kernels: int
    short_kernels: int
    short_kernels_ns: int
    graph_launches: int
    unseen_replays: int
    recoverable_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All runs of one kernel: over all ranks (`rank` None) or of one.

    `share` is `total_ns` over the summed durations of all kernels. `median_ns` over several ranks
    is the median of the ranks' medians. `flops` and `bytes` are those of the `shaped` runs whose
    shapes the trace tells, which took `shaped_ns`; rates rest on these alone: `flops_per_s`,
    `bytes_per_s`, `peak_share` of the device's dense peak, `roof_share` of the roofline and what
    bounds it (`bound`: compute, memory; cache where it is above the roof of memory).
    """

    name: str
    family: str
    count: int
    total_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    share: float
    rank: int | None = None
    shaped: int = 0
    shaped_ns: int = 0
    flops: int | None = None
    bytes: int | None = None
    dtype: str | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    intensity: float | None = None
    peak_share: float | None = None
    roof_share: float | None = None
    bound: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """All kernels of one family: GEMM, attention, elementwise, norm, …"""

    family: str
    count: int
    total_ns: int
    share: float
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRow:
    """A chain of memory-bound kernels that follow each other on a stream, over all its runs.

    `saved_bytes` would not be written and read again if each run were one kernel; None where the
    trace does not tell the shapes between them.
    """

    chain: tuple[str, ...]
    count: int
    total_ns: int
    rank: int | None = None
    saved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionRow:
    """One kernel, launch shape and operator (by its FLOPs), run under communication and alone.

    `factor` = `overlapped_median_ns` / `alone_median_ns`; `lengthened_ns` is what all runs that
    communication touches took beyond the median of those alone.
    """

    rank: int
    name: str
    launch_shape: str
    overlapped: int
    alone: int
    overlapped_median_ns: float
    alone_median_ns: float
    factor: float
    lengthened_ns: int
    operator_flops: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetGainRow:
    """What overlap was worth on one rank: `net_gain_ns` = `hidden_ns` − `lengthened_ns`.

    `factor` is over all kernels measured both ways, weighted by their time; `covered_share` is
    the part of the overlapped compute time that they make up.
    """

    rank: int
    hidden_ns: int
    lengthened_ns: int
    net_gain_ns: int
    factor: float
    covered_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRow:
    """One test of a recording: what was found, of how many, and what that means for the results.

    `verdict` is `good`, `noted` (no result suffers), `downgraded` or `refused`; `affects` names
    the results. `rank` is None for a test of all recordings together.
    """

    rank: int | None
    check: str
    count: int
    of: int
    verdict: str
    finding: str
    affects: str = ""
    duration_ns: int = 0
