"""Collects decoded events into columns: one Python pass over each block, numpy from there on."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.trace.clock import NO_TIME, nanoseconds
from steptally.trace.kinds import is_known, kind_of
from steptally.trace.kineto_arguments import READERS, decode_arguments, reader_of
from steptally.trace.kineto_format import (
    CollectiveArguments,
    DeviceArguments,
    Event,
    LaunchArguments,
    OperatorArguments,
)
from steptally.trace.schema import DEVICE_KINDS, EVENTS, Loss

Int64s = npt.NDArray[np.int64]

ABSENT = -1  # of ids and counts, which are never negative; null in the frames
NOT_KEPT = -1
_LARGEST = np.iinfo(np.int64).max
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_HOST_IDS = ("process", "thread")
_OTHER_IDS = ("device", "stream", "correlation", "bytes", "graph")
_COLUMNS = ("code", "start_ns", "end_ns", *_HOST_IDS, *_OTHER_IDS, "shape")


class Names(dict[tuple[str | None, str], int]):
    """The code of each pair of category and name, which is classified once, on first sight."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.readers: list[int] = []

    def __missing__(self, key: tuple[str | None, str]) -> int:
        kind = kind_of(*key)
        if kind is None:
            self[key] = NOT_KEPT
        else:
            self[key] = len(self.names)
            self.names.append(key[1])
            self.kinds.append(kind)
            self.readers.append(reader_of(kind, key[1]))
        return self[key]


class Shapes(dict[tuple[bytes, bytes], int]):
    """The code of each pair of grid and block, which is spelled once, on first sight."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, key: tuple[bytes, bytes]) -> int:
        self[key] = len(self.texts) if all(key) else ABSENT
        if all(key):
            self.texts.append(b",".join(key).translate(None, b" ").decode(errors="replace"))
        return self[key]


@dataclass(slots=True)
class Columns:
    """The rows of one file, gathered block by block; `frames` puts them together."""

    names: Names = field(default_factory=Names)
    shapes: Shapes = field(default_factory=Shapes)
    blocks: list[dict[str, Int64s]] = field(default_factory=list)
    collectives: list[tuple[Any, ...]] = field(default_factory=list)
    operators: list[tuple[Any, ...]] = field(default_factory=list)
    rows: int = 0
    unknown_categories: Counter[str] = field(default_factory=Counter)
    timeless_events: int = 0
    bad_arguments: int = 0

    def add(self, events: Iterable[Event]) -> None:
        """Take the events of one block that are intervals of someone's work."""
        names = self.names
        complete = [event for event in events if event.ph == "X"]
        codes = np.array([names[event.cat, event.name] for event in complete], dtype=np.int64)
        kept = codes != NOT_KEPT
        self._count_unknown(complete, ~kept)
        rows, codes = list(compress(complete, kept.tolist())), codes[kept]
        start_ns = nanoseconds([event.ts for event in rows])
        duration_ns = nanoseconds([0 if event.dur is None else event.dur for event in rows])
        timed = (start_ns != NO_TIME) & (duration_ns >= 0)
        if not timed.all():
            self.timeless_events += int((~timed).sum())
            rows, codes = list(compress(rows, timed.tolist())), codes[timed]
            start_ns, duration_ns = start_ns[timed], duration_ns[timed]
        block = {
            "code": codes,
            "start_ns": start_ns,
            "end_ns": start_ns + duration_ns,
            "process": _integers([event.pid for event in rows]),
            "thread": _integers([event.tid for event in rows]),
        }
        for name in (*_OTHER_IDS, "shape"):
            block[name] = np.full(len(rows), ABSENT, dtype=np.int64)
        self._read_arguments(rows, block)
        self.blocks.append(block)
        self.rows += len(rows)

    def losses(self) -> list[Loss]:
        """Events that were read and could not be used."""
        counts = {
            "no usable time, or a negative duration": self.timeless_events,
            "arguments of the wrong type; the events themselves are kept": self.bad_arguments,
        }
        return [Loss(reason=reason, events=count) for reason, count in counts.items() if count]

    def events(self, base_ns: int) -> pl.DataFrame:
        """The rows, `base_ns` added to their times; rank, group and step are left to the caller."""
        column = {name: np.concatenate([block[name] for block in self.blocks]) for name in _COLUMNS}
        code = pl.Series(column["code"])
        kind = pl.Series(self.names.kinds, dtype=EVENTS["kind"]).gather(code)
        on_device = kind.is_in(DEVICE_KINDS)
        host_only = {name: pl.Series(column[name]).set(on_device, None) for name in _HOST_IDS}
        others = {name: _without_absent(column[name]) for name in _OTHER_IDS}
        shape = pl.Series(self.shapes.texts, dtype=pl.String).gather(
            _without_absent(column["shape"])
        )
        return pl.DataFrame(
            {
                "start_ns": column["start_ns"] + base_ns,
                "end_ns": column["end_ns"] + base_ns,
                "name": pl.Series(self.names.names, dtype=pl.String).gather(code),
                "kind": kind,
                **host_only,
                **others,
                "launch_shape": shape,
            }
        )

    def _count_unknown(self, events: Sequence[Event], left_out: npt.NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(left_out).tolist():
            category = events[row].cat
            if not is_known(category):
                self.unknown_categories[category or "none"] += 1

    def _read_arguments(self, rows: Sequence[Event], block: dict[str, Int64s]) -> None:
        """Decode the arguments of those rows whose kind has any that matter."""
        readers = np.array(self.names.readers, dtype=np.int64)[block["code"]]
        for number, struct in enumerate(READERS):
            places = np.flatnonzero(readers == number)
            texts = [rows[place].args for place in places.tolist()]
            arguments, bad = decode_arguments(texts, struct)
            self.bad_arguments += bad
            if struct is LaunchArguments:
                block["correlation"][places] = [_int64(one.correlation) for one in arguments]
            elif struct is DeviceArguments:
                self._take_device(places, arguments, block)
            elif struct is CollectiveArguments:
                for place, one in zip(places.tolist(), arguments, strict=True):
                    self._take_collective(place, one)
            else:
                for place, one in zip(places.tolist(), arguments, strict=True):
                    self._take_operator(place, one)

    def _take_device(
        self, places: Int64s, arguments: Sequence[DeviceArguments], block: dict[str, Int64s]
    ) -> None:
        """Device and stream are those of the arguments, else the event's process and thread."""
        told = {
            "device": _integers([one.device for one in arguments]),
            "stream": _integers([one.stream for one in arguments]),
        }
        for name, instead in (("device", "process"), ("stream", "thread")):
            where_told = told[name] != ABSENT
            block[name][places] = np.where(where_told, told[name], block[instead][places])
        block["correlation"][places] = [_int64(one.correlation) for one in arguments]
        block["bytes"][places] = [_int64(one.bytes) for one in arguments]
        # CUPTI's id of no graph is 0.
        block["graph"][places] = [_int64(one.graph or None) for one in arguments]
        shapes = self.shapes
        block["shape"][places] = [shapes[bytes(one.grid), bytes(one.block)] for one in arguments]
        for place, one in zip(places.tolist(), arguments, strict=True):
            if one.collective is not None:
                self._take_collective(place, one)

    def _take_collective(self, row: int, arguments: CollectiveArguments) -> None:
        ranks = arguments.group_ranks
        self.collectives.append(
            (
                self.rows + row,
                arguments.collective,
                None if arguments.group_name is None else str(arguments.group_name),
                arguments.group_description,
                str(ranks) if isinstance(ranks, list) else ranks,
                arguments.group_size,
                arguments.elements_in,
                arguments.elements_out,
                arguments.bytes_in,
                arguments.bytes_out,
                arguments.dtype,
                arguments.sequence,
                arguments.source_rank,
                arguments.destination_rank,
            )
        )

    def _take_operator(self, row: int, arguments: OperatorArguments) -> None:
        raw = (arguments.dimensions, arguments.types, arguments.values)
        texts = [bytes(text).decode() or None for text in raw]
        if any(texts) or arguments.sequence is not None:
            numbers = (arguments.sequence, arguments.forward_thread)
            self.operators.append((self.rows + row, *texts, *numbers))


def _without_absent(values: Int64s) -> pl.Series:
    return pl.Series(values).set(pl.Series(values == ABSENT), None)


def _integers(values: Sequence[int | str | None]) -> Int64s:
    """Process and thread ids; a text is known by its last number ("stream 7"), else its hash."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: int | str | None) -> int:
    if isinstance(value, str):
        number = _LAST_NUMBER.search(value)
        value = int(number.group(1)) if number else zlib.crc32(value.encode())
    return _int64(value)


def _int64(value: int | None) -> int:
    """The value where it is an id that int64 holds, else `ABSENT`."""
    return value if value is not None and 0 <= value <= _LARGEST else ABSENT
