"""The typed rows of each account. Units live in the names; times are integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

PHASES = ("forward", "backward", "recompute", "step")
# A matrix product's backward is two: the gradient of its input and of its weight.
GEMM_PHASES = ("forward", "dgrad", "wgrad", "recompute")
# Beside those of the model: after the last backward, the update, and what is logged.
TRAFFIC_PHASES = (*PHASES, "gradients", "optimizer", "logging")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsRow:
    """FLOPs of one term of the model in one phase, for one optimizer step over all ranks.

    `useful` is what the mathematics needs under the tally's convention, `executed` what the
    hardware is asked to do. Both are exact integers.
    """

    name: str
    phase: str
    useful: int
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
    """Bytes of one kind on one rank; `lifetime` says when they live."""

    rank: int
    lifetime: str
    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """Communication of one process group inside one rank's step.

    `exposed_ns` = union(group) − union(group) ∩ union(compute). Groups may run at the same time,
    so their exposed times can add to more than the rank's; `exposed_alone_ns` is the part in which
    no other group communicates, and those do add up (with `shared` time) to the rank's.
    """

    group: str
    instances: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    exposed_alone_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """Where one rank's traced step went: span = compute + exposed + copies-only + idle.

    span: first start to last end; busy: union of all intervals; idle = span − busy; all in ns.
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
    "time": TimeRow,
    "steps": StepRow,
}

Row = (
    FlopsRow
    | ConventionRow
    | LoggedRow
    | LossRow
    | ParametersRow
    | GemmRow
    | TrafficRow
    | GroupRow
    | MemoryRow
    | TimeRow
    | StepRow
)
