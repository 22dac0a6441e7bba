"""The typed rows of each account. Units live in the names; times are integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from steptally.tally.straggler_rows import (
    ClockRow,
    CollectiveRow,
    PeerRow,
    ReplayRow,
    VerdictRow,
    WaitRow,
    WhatIfRow,
)
from steptally.tally.trace_rows import (
    ContentionRow,
    FamilyRow,
    FusionRow,
    GapRow,
    KernelRow,
    NetGainRow,
    SourceRow,
    TimeRow,
    TrustRow,
)

PHASES = ("forward", "backward", "recompute", "step")
# A matrix product's backward is two: the gradient of its input and of its weight.
GEMM_PHASES = ("forward", "dgrad", "wgrad", "recompute")
# Beside those of the model: after the last backward, the update, and what is logged.
TRAFFIC_PHASES = (*PHASES, "gradients", "optimizer", "logging")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsRow:
    """FLOPs of one term of the model in one phase, for one optimizer step over all ranks.

    `useful` is what the mathematics needs under the tally's convention (None where only what runs
    is known), `executed` what the hardware is asked to do. Both are exact integers.
    """

    name: str
    phase: str
    useful: int | None
    executed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionRow:
    """What another convention counts as the useful FLOPs of the same step.

    `difference` is its count over the exact one, − 1; `source` is who counts so.
    """

    name: str
    useful: int | float
    difference: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRow:
    """What a convention makes of a logged run's speed, beside the FLOP/s per device it printed.

    Medians over the steady iterations; `difference` is counted / logged − 1.
    """

    name: str
    counted_flops_per_s: float
    logged_flops_per_s: float
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """The loss of a logged run, with what had been spent on it by then.

    `tokens` are those consumed, `wall_time_s` the sum of the logged step times (no downtime),
    `useful_flops` over all devices.
    """

    iteration: int
    loss: float
    tokens: int
    wall_time_s: float
    useful_flops: int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRow:
    """Parameters of one kind of tensor, over the whole model; `active` is what one token uses."""

    name: str
    count: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRow:
    """One shape of matrix product, C[m,n] = A[m,k] · B[k,n], `batch` of them a call.

    `calls` and `flops` are per step of one rank (`rank` is None where ranks are summed), `bytes`
    counts each operand and the result once a call. `intensity` is FLOP/byte, `cuts` the parallel
    axis that made a dimension smaller (`n/tp`), `misaligned` the dimensions that tensor cores do
    not like. What needs a device is None without one: `tile` (m×n of one thread block), `waves`,
    `tail_efficiency` (waves / whole waves), `bound` (compute, memory, launch), `efficiency` (the
    expected part of the dense peak, an upper bound) and `restore` (what would raise it).
    """

    name: str
    phase: str
    m: int
    n: int
    k: int
    batch: int
    calls: int
    flops: int
    bytes: int | None = None
    waves: float | None = None
    bound: str | None = None
    rank: int | None = None
    dtype: str | None = None
    intensity: float | None = None
    cuts: str = ""
    misaligned: str = ""
    tile: str | None = None
    tail_efficiency: float | None = None
    efficiency: float | None = None
    restore: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """One kind of collective in one process group, as one rank sees it.

    `bytes_per_call` is the size of the full tensor that the collective leaves or reduces (not
    bytes on the wire); `scope` is `intra-node`, `inter-node` or None where it is not known. `name`
    says which tensor. `overlap_flag` is the setting that would hide it behind compute, `overlapped`
    whether the job does (with or without a flag). At least `sent_bytes_per_step` leave the rank,
    and `network_bytes_per_step` of them its node (or rack, where a fast link joins nodes); None
    where the communication library's algorithm decides.
    """

    group: str
    group_size: int
    collective: str
    phase: str
    calls_per_step: int
    bytes_per_call: int
    rank: int | None = None
    scope: str | None = None
    name: str = ""
    dtype: str | None = None
    bytes_per_step: int | None = None
    overlap_flag: str | None = None
    overlapped: bool | None = None
    sent_bytes_per_step: int | None = None
    network_bytes_per_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One process group of one rank: its members in Megatron's order.

    `nodes` is how many nodes they stand on.
    """

    group: str
    group_size: int
    ranks: tuple[int, ...]
    nodes: int
    scope: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Bytes of one kind on one rank; `lifetime` says when they live.

    The predicted rows of one rank are what is alive at its peak, `peak_bytes`, and add up to it but
    for those of lifetime `outside`, which torch's allocator does not see. `pp` and `vpp` are the
    rank's pipeline stage and the chunk of it (None: of all its chunks).
    """

    rank: int
    lifetime: str
    name: str
    bytes: int
    pp: int | None = None
    vpp: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeakRow:
    """The peaks of one rank, in bytes that torch has allocated at once; `outside` comes on top.

    `ranks` are all ranks of the pipeline stage `pp`, which are alike, as text. `peak_bytes` is of
    every step after the first, reached in `event`, when each chunk of the rank holds the
    activations of `in_flight` micro-batches. `total_bytes` is what the device must have: the
    highest peak and what is outside. The last three are None where a basis does not know them.
    """

    rank: int
    ranks: str
    pp: int
    in_flight: tuple[int, ...]
    event: str
    peak_bytes: int
    first_step_peak_bytes: int
    checkpoint_peak_bytes: int | None = None
    outside_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMomentRow:
    """One event of a step on one rank: bytes allocated before, at most during, and after it.

    `step` is `first` or `later`, `event` a pass (`forward`, `backward`), the `optimizer` step or a
    `checkpoint` save; `microbatch` and `vpp` say whose pass.
    """

    rank: int
    position: int
    step: str
    event: str
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    microbatch: int | None = None
    vpp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChangeRow:
    """One change of a job: the bytes its largest rank would need, and its executed FLOPs.

    `total_bytes` is as in `MemoryPeakRow`; `difference` is the executed FLOPs of a step over those
    of the unchanged job, − 1. `cost` names what it costs beside FLOPs.
    """

    name: str
    total_bytes: int
    fits: bool | None
    flops_per_step_executed: int
    difference: float
    cost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step as one rank saw it; `loss` is None on ranks that do not compute it.

    `tokens` are the whole job's in this step, None where the loop did not say.
    """

    step: int
    rank: int
    duration_ns: int
    tokens: int | None
    traced: bool
    warmup: bool
    loss: float | None = None
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstitutionRow:
    """What was rehearsed in place of a setting, and what that does to each account.

    `flops`, `traffic` and `memory` are `stands`, `at most` or `at least` (the job needs at most or
    at least what was rehearsed), or `void`.
    """

    setting: str
    stated: str
    rehearsed: str
    flops: str
    traffic: str
    memory: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """One rank that was rehearsed, and the ranks that execute the same program.

    `ranks` are those as text, `rank_count` how many. `microbatches` were rehearsed, in as many runs
    as it has numbers; `operators` ran a kernel and `products` were matrix products, in a step of
    the job.
    """

    rank: int
    ranks: str
    rank_count: int
    pp: int
    microbatches: tuple[int, ...]
    parameters: int
    operators: int
    products: int
    collectives: int
    in_flight: tuple[int, ...]


ROW_TYPES: dict[str, type] = {
    "flops": FlopsRow,
    "elementwise": FlopsRow,
    "conventions": ConventionRow,
    "logged": LoggedRow,
    "loss": LossRow,
    "parameters": ParametersRow,
    "gemms": GemmRow,
    "traffic": TrafficRow,
    "groups": GroupRow,
    "memory": MemoryRow,
    "memory_peaks": MemoryPeakRow,
    "memory_timeline": MemoryMomentRow,
    "memory_changes": MemoryChangeRow,
    "time": TimeRow,
    "partial_steps": TimeRow,
    "recording": TimeRow,
    "sources": SourceRow,
    "gaps": GapRow,
    "kernels": KernelRow,
    "kernel_families": FamilyRow,
    "fusion": FusionRow,
    "contention": ContentionRow,
    "net_gain": NetGainRow,
    "trust": TrustRow,
    "steps": StepRow,
    "substitutions": SubstitutionRow,
    "programs": ProgramRow,
    "verdicts": VerdictRow,
    "replay": ReplayRow,
    "what_if": WhatIfRow,
    "peers": PeerRow,
    "waits": WaitRow,
    "collectives": CollectiveRow,
    "clock": ClockRow,
}

Row = (
    FlopsRow
    | ClockRow
    | CollectiveRow
    | PeerRow
    | ReplayRow
    | VerdictRow
    | WaitRow
    | WhatIfRow
    | ConventionRow
    | LoggedRow
    | LossRow
    | ParametersRow
    | GemmRow
    | TrafficRow
    | GroupRow
    | MemoryRow
    | MemoryPeakRow
    | MemoryMomentRow
    | MemoryChangeRow
    | TimeRow
    | SourceRow
    | GapRow
    | KernelRow
    | FamilyRow
    | FusionRow
    | ContentionRow
    | NetGainRow
    | TrustRow
    | StepRow
    | SubstitutionRow
    | ProgramRow
)
