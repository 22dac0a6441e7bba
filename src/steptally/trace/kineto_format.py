"""The shape of Kineto's JSON, as typed structs that msgspec decodes at hundreds of MB/s.

Only what steptally uses is named; everything else is skipped by the parser. Field names follow
the file. Arguments of collectives are NCCL's (torch/csrc/profiler/util.h), which steptally's
recorder also writes; `graph id` is Kineto's of 2026 (pytorch/kineto PR 1276).
"""

from __future__ import annotations

from typing import Any

import msgspec

NO_TEXT = msgspec.Raw(b"")
NO_ARGUMENTS = msgspec.Raw(b"{}")


class LaunchArguments(msgspec.Struct, gc=False):
    """Of a call of the device's runtime."""

    correlation: int | None = None


class DeviceArguments(msgspec.Struct, gc=False):
    """Of a kernel, copy or memset; a collective's others are read from the same text."""

    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | None = None
    grid: msgspec.Raw = NO_TEXT
    block: msgspec.Raw = NO_TEXT
    bytes: int | None = None
    graph: int | None = msgspec.field(name="graph id", default=None)
    collective: str | None = msgspec.field(name="Collective name", default=None)


class ShapeArguments(msgspec.Struct, gc=False):
    """Of an operator that only has to tell how large its tensors are."""

    types: msgspec.Raw = msgspec.field(name="Input type", default=NO_TEXT)
    dimensions: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_TEXT)


class OperatorArguments(ShapeArguments, gc=False):
    """Of an operator whose values and place in autograd matter too."""

    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NO_TEXT)
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward_thread: int | None = msgspec.field(name="Fwd thread id", default=None)


class CollectiveArguments(msgspec.Struct, gc=False):
    """Of a collective: NCCL's kernels, and the recorder's tags for any backend."""

    collective: str | None = msgspec.field(name="Collective name", default=None)
    group_name: str | int | None = msgspec.field(name="Process Group Name", default=None)
    group_description: str | None = msgspec.field(name="Process Group Description", default=None)
    group_ranks: str | list[int] | None = msgspec.field(name="Process Group Ranks", default=None)
    group_size: int | None = msgspec.field(name="Group size", default=None)
    elements_in: int | None = msgspec.field(name="In msg nelems", default=None)
    elements_out: int | None = msgspec.field(name="Out msg nelems", default=None)
    bytes_in: int | None = msgspec.field(name="In msg bytes", default=None)
    bytes_out: int | None = msgspec.field(name="Out msg bytes", default=None)
    dtype: str | None = None
    sequence: int | None = msgspec.field(name="Seq", default=None)
    source_rank: int | None = msgspec.field(name="Src Rank", default=None)
    destination_rank: int | None = msgspec.field(name="Dst Rank", default=None)


class Event(msgspec.Struct, gc=False):
    """One trace event; times in microseconds, as numbers or text, as the file has them."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: msgspec.Raw = NO_ARGUMENTS


class ExactEvent(Event, gc=False):
    """An event whose start is to be decoded by `float_hook=str`, losing no digit."""

    ts: Any = None


class FileInfo(msgspec.Struct, gc=False):
    """What a file says beside its events."""

    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    base_time_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


class Document(FileInfo, gc=False):
    """A whole file."""

    events: list[Event] = msgspec.field(name="traceEvents", default_factory=list)


class ExactDocument(FileInfo, gc=False):
    """A whole file whose decimal starts are kept as text."""

    events: list[ExactEvent] = msgspec.field(name="traceEvents", default_factory=list)
