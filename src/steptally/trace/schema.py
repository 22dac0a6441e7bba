"""The one columnar schema that every recording is read into, whatever profiler wrote it.

A `Trace` is one rank's recording: `events` has a row per interval of work, in integer nanoseconds;
`collectives` and `operators` hold what only some of those rows have, and point at them by row
number (`event`, a row of `events`). Readers fill the tables, `measure` works on them, and nothing
else needs to know which profiler it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

# What a row is. Those of a device (an accelerator's stream); `graph` is the replay of a whole CUDA
# graph where the profiler does not show what ran inside it: busy time of unknown content.
DEVICE_KINDS = (
    "compute",
    "communication",
    "copy",
    "memset",
    "graph",
    "device_annotation",
    "device_sync",
)
# Those of a host thread: `operator` runs on the CPU; `issue` hands a collective to the backend;
# `collective` is the recorder's tag around an issue; `wait` blocks on a collective; `transfer` is
# the interval in which gloo works on one; `launch` hands work to a device; `instrument` is the
# cost of recording itself.
HOST_KINDS = (
    "operator",
    "issue",
    "collective",
    "wait",
    "transfer",
    "step",
    "launch",
    "instrument",
    "annotation",
)
KINDS = DEVICE_KINDS + HOST_KINDS

UNATTRIBUTED = "unattributed"

# start_ns and end_ns are on the clock of the file, as near to Unix time as it tells.
# `process` and `thread` place host rows, `device` and `stream` device rows; one `stream` number
# means different streams on different devices and in different processes.
# `group` is a process group's own name (Megatron's), UNATTRIBUTED where communication cannot be
# assigned to one, and null on every other row; `collective` is the row of `COLLECTIVES` that tells
# more. `step` is null outside recorded steps.
# `graph` is the id of the CUDA or HIP graph that the event was replayed from, where the profiler
# tells it; `launch_shape` is a kernel's grid and block as text: "[108,1,1],[256,1,1]".
EVENTS: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "device": pl.Int32(),
    "stream": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "name": pl.String(),
    "kind": pl.Enum(KINDS),
    "group": pl.String(),
    "collective": pl.Int64(),
    "step": pl.Int64(),
    "correlation": pl.Int64(),
    "bytes": pl.Int64(),
    "graph": pl.Int64(),
    "launch_shape": pl.String(),
}

# One row per recorded collective: the recorder's tags, or NCCL's kernels with their arguments.
# Elements and bytes are those of one rank's input and output; `sequence` counts a group's
# collectives from 0 and is equal on all its members.
COLLECTIVES: Mapping[str, pl.DataType] = {
    "event": pl.UInt32(),
    "collective": pl.String(),
    "group_name": pl.String(),
    "group_description": pl.String(),
    "group_ranks": pl.String(),
    "group_size": pl.Int64(),
    "elements_in": pl.Int64(),
    "elements_out": pl.Int64(),
    "bytes_in": pl.Int64(),
    "bytes_out": pl.Int64(),
    "dtype": pl.String(),
    "sequence": pl.Int64(),
    "source_rank": pl.Int64(),
    "destination_rank": pl.Int64(),
}

# Arguments of the operators where they matter: matrix products, collectives, gloo's transfers,
# autograd's nodes and functions; of all others the dimensions and types of their tensors.
# Dimensions, types and values are JSON texts, one entry for each argument, as the profiler wrote
# them. `sequence` is autograd's number of the node that a forward operator (`forward_thread` 0)
# would make, and of a node that runs in backward (1 or more).
OPERATORS: Mapping[str, pl.DataType] = {
    "event": pl.UInt32(),
    "dimensions": pl.String(),
    "types": pl.String(),
    "values": pl.String(),
    "sequence": pl.Int64(),
    "forward_thread": pl.Int64(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Part of a recording that could not be read: `events` of them, or `size_bytes` of text."""

    reason: str
    events: int = 0
    size_bytes: int = 0

    def sentence(self) -> str:
        """The loss in words: `12 events (3,456 bytes): the file ends early`."""
        parts = []
        if self.events:
            parts.append(f"{self.events:,} event{'s' if self.events > 1 else ''}")
        if self.size_bytes:
            parts.append(f"{self.size_bytes:,} bytes")
        return f"lost {' and '.join(parts) or 'an unknown amount'}: {self.reason}"


def by_reason(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """The losses, those of one reason as one."""
    events: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for loss in losses:
        events[loss.reason] += loss.events
        sizes[loss.reason] += loss.size_bytes
    return tuple(Loss(reason=r, events=events[r], size_bytes=sizes[r]) for r in events)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A process group that the recording names: its members are global ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One rank's recording. `rank` and `world_size` are None where the file does not say.

    `process` and `device` tell which part of its source a trace is, where one file holds the
    devices of several ranks (Nsight Systems); None where the file is the rank.
    """

    source: Path
    rank: int | None
    world_size: int | None
    backend: str | None
    groups: Sequence[ProcessGroup]
    events: pl.DataFrame
    collectives: pl.DataFrame
    operators: pl.DataFrame
    losses: Sequence[Loss] = ()
    warnings: Sequence[str] = ()
    process: int | None = None
    device: int | None = None

    @property
    def has_device(self) -> bool:
        """Whether an accelerator's work was recorded."""
        work = ["compute", "communication", "copy", "graph"]
        return bool(self.events["kind"].is_in(work).any())


def empty(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A frame of that schema without rows."""
    return pl.DataFrame(schema=dict(schema))
