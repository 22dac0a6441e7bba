"""Collects decoded events into columns: one Python pass over each block, numpy from there on."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from steptally.trace.clock import NO_TIME, nanoseconds
from steptally.trace.kineto_arguments import Told, decode_arguments, holds
from steptally.trace.kineto_format import (
    NO_TEXT,
    CollectiveArguments,
    DeviceArguments,
    Event,
    LaunchArguments,
    OperatorArguments,
    ShapeArguments,
)
from steptally.trace.kineto_names import (
    COLLECTIVE,
    DEVICE,
    LAUNCH,
    OPERATOR,
    SHAPES,
    UNKNOWN,
    WAYS,
    Names,
    Texts,
)
from steptally.trace.schema import Loss

Int64s = npt.NDArray[np.int64]

ABSENT = -1  # of ids and counts, which are never negative; null in the frames
_LARGEST = np.iinfo(np.int64).max
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
# Complete events, and those that say nothing of anyone's work: metadata, flows, instants, counters.
_READ_PHASES = frozenset(("X", "M", "s", "t", "f", "i", "I", "C"))

# Columns of every event; of calls that launch; of events on a device; of operators.
EVENT_COLUMNS = ("code", "start_ns", "end_ns", "process", "thread")
LAUNCH_COLUMNS = ("event", "correlation")
DEVICE_COLUMNS = ("event", "device", "stream", "correlation", "bytes", "graph", "shape")
OPERATOR_COLUMNS = ("event", "dimensions", "types", "values", "sequence", "forward_thread")


@dataclass(slots=True)
class Columns:
    """The rows of one file, gathered block by block, as arrays by column name."""

    names: Names
    events: list[dict[str, Int64s]] = field(default_factory=list)
    launches: list[dict[str, Int64s]] = field(default_factory=list)
    device_work: list[dict[str, Int64s]] = field(default_factory=list)
    operators: list[dict[str, Int64s]] = field(default_factory=list)
    collectives: list[tuple[Any, ...]] = field(default_factory=list)
    texts: Texts = field(default_factory=Texts)
    shapes: Texts = field(default_factory=Texts)
    rows: int = 0
    unknown_categories: Counter[str] = field(default_factory=Counter)
    timeless_events: int = 0
    unread_events: int = 0
    bad_arguments: int = 0

    def add(self, events: Sequence[Event]) -> None:
        """Take the events of one block that are intervals of someone's work."""
        names = self.names
        rows = [event for event in events if event.ph == "X"]
        if not {event.ph for event in events} <= _READ_PHASES:
            self.unread_events += sum(event.ph not in _READ_PHASES for event in events)
        codes = np.array([names[event.cat, event.name] for event in rows], dtype=np.int64)
        if codes.size and codes.min() < 0:
            kept = codes >= 0
            unknown = compress(rows, codes == UNKNOWN)
            self.unknown_categories.update(event.cat or "none" for event in unknown)
            rows, codes = list(compress(rows, kept)), codes[kept]
        if not rows:
            return
        start_ns = nanoseconds([event.ts for event in rows])
        duration_ns = nanoseconds([0 if event.dur is None else event.dur for event in rows])
        if start_ns.min() == NO_TIME or duration_ns.min() < 0:
            timed = (start_ns != NO_TIME) & (duration_ns >= 0)
            self.timeless_events += int((~timed).sum())
            rows, codes = list(compress(rows, timed)), codes[timed]
            start_ns, duration_ns = start_ns[timed], duration_ns[timed]
        process = ids([event.pid for event in rows])
        thread = ids([event.tid for event in rows])
        columns = (codes, start_ns, start_ns + duration_ns, process, thread)
        self.events.append(dict(zip(EVENT_COLUMNS, columns, strict=True)))
        reads = codes % WAYS
        self._add_launches(np.flatnonzero(reads == LAUNCH), rows)
        self._add_device_work(np.flatnonzero(reads == DEVICE), rows)
        self._add_operators(np.flatnonzero(reads == OPERATOR), rows)
        self._add_shapes(np.flatnonzero(reads == SHAPES), rows)
        self._add_collectives(np.flatnonzero(reads == COLLECTIVE), rows)
        self.rows += len(rows)

    @property
    def has_device_work(self) -> bool:
        """Whether an event of a device was taken."""
        return any(block["event"].size for block in self.device_work)

    def losses(self) -> list[Loss]:
        """Events that were read and could not be used."""
        counts = {
            "no usable time, or a negative duration": self.timeless_events,
            'a phase ("ph") that Kineto does not write: steptally reads complete events (X)': (
                self.unread_events
            ),
            "arguments of the wrong type; the events themselves are kept": self.bad_arguments,
        }
        return [Loss(reason=reason, events=count) for reason, count in counts.items() if count]

    def _arguments(self, places: Int64s, rows: Sequence[Event], struct: type[Told]) -> list[Told]:
        """What the events at these places tell."""
        told, bad = decode_arguments([rows[place].args for place in places.tolist()], struct)
        self.bad_arguments += bad
        return told

    def _add_launches(self, places: Int64s, rows: Sequence[Event]) -> None:
        arguments = self._arguments(places, rows, LaunchArguments)
        correlation = counts([one.correlation for one in arguments])
        self.launches.append({"event": places + self.rows, "correlation": correlation})

    def _add_device_work(self, places: Int64s, rows: Sequence[Event]) -> None:
        arguments = self._arguments(places, rows, DeviceArguments)
        shapes = self.shapes
        shape = [shapes[b"%b,%b" % (one.grid, one.block)] for one in arguments]
        self.device_work.append(
            {
                "event": places + self.rows,
                "device": ids([one.device for one in arguments]),
                "stream": ids([one.stream for one in arguments]),
                "correlation": counts([one.correlation for one in arguments]),
                "bytes": counts([one.bytes for one in arguments]),
                "graph": counts([one.graph for one in arguments]),
                "shape": np.array(shape, dtype=np.int64),
            }
        )
        self._add_collectives(places[[one.collective is not None for one in arguments]], rows)

    def _add_operators(self, places: Int64s, rows: Sequence[Event]) -> None:
        arguments = self._arguments(places, rows, OperatorArguments)
        texts = self.texts
        self.operators.append(
            {
                "event": places + self.rows,
                "dimensions": _codes(texts, [one.dimensions for one in arguments]),
                "types": _codes(texts, [one.types for one in arguments]),
                "values": _codes(texts, [one.values for one in arguments]),
                "sequence": counts([one.sequence for one in arguments]),
                "forward_thread": counts([one.forward_thread for one in arguments]),
            }
        )

    def _add_shapes(self, places: Int64s, rows: Sequence[Event]) -> None:
        texts = [rows[place].args for place in places.tolist()]
        if not holds(texts, b'"Input Dims"'):
            return  # recorded without shapes, as most are
        arguments, bad = decode_arguments(texts, ShapeArguments)
        self.bad_arguments += bad
        nothing = np.zeros(places.size, dtype=np.int64)
        self.operators.append(
            {
                "event": places + self.rows,
                "dimensions": _codes(self.texts, [one.dimensions for one in arguments]),
                "types": _codes(self.texts, [one.types for one in arguments]),
                "values": nothing,
                "sequence": nothing + ABSENT,
                "forward_thread": nothing + ABSENT,
            }
        )

    def _add_collectives(self, places: Int64s, rows: Sequence[Event]) -> None:
        if not places.size:
            return
        arguments = self._arguments(places, rows, CollectiveArguments)
        for place, one in zip(places.tolist(), arguments, strict=True):
            self._add_collective(place, one)

    def _add_collective(self, row: int, told: CollectiveArguments) -> None:
        ranks = told.group_ranks
        self.collectives.append(
            (
                self.rows + row,
                told.collective,
                None if told.group_name is None else str(told.group_name),
                told.group_description,
                str(ranks) if isinstance(ranks, list) else ranks,
                *map(
                    _int64,
                    (
                        told.group_size,
                        told.elements_in,
                        told.elements_out,
                        told.bytes_in,
                        told.bytes_out,
                    ),
                ),
                told.dtype,
                *map(_int64, (told.sequence, told.source_rank, told.destination_rank)),
            )
        )


def ids(values: Sequence[int | str | None]) -> Int64s:
    """Process and thread ids; a text is known by its last number ("stream 7"), else its hash."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_id(value) for value in values], dtype=np.int64)


def counts(values: Sequence[int | None]) -> Int64s:
    """Numbers that are never negative: `ABSENT`, or another negative one, where there is none."""
    told = [ABSENT if value is None else value for value in values]
    try:
        return np.array(told, dtype=np.int64)
    except OverflowError:
        return np.array(
            [value if abs(value) <= _LARGEST else ABSENT for value in told], dtype=np.int64
        )


def _id(value: int | str | None) -> int:
    if isinstance(value, str):
        number = _LAST_NUMBER.search(value)
        value = int(number.group(1)) if number else zlib.crc32(value.encode(errors="replace"))
    return value if value is not None and abs(value) <= _LARGEST else ABSENT


def _int64(value: int | None) -> int | None:
    """The value where a column can hold it."""
    return value if value is not None and abs(value) <= _LARGEST else None


def _codes(texts: Texts, values: Sequence[Any]) -> Int64s:
    return np.array(
        [0 if value is NO_TEXT else texts[bytes(value)] for value in values], dtype=np.int64
    )
