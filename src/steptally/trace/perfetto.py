"""Writes traces as one Chrome JSON file that Perfetto (ui.perfetto.dev) and chrome://tracing load.

    write_perfetto(Path("step.json.gz"), [(trace, device_tracks(trace))])

Each rank is a process: first the added tracks (steps, exposed communication, one for each process
group), then its streams, then its host threads. Events of a stream that overlap are drawn on lanes
of their own, so that none is hidden. Times are relative to the earliest event;
`baseTimeNanoseconds` holds that one's, so that steptally reads the file back.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import msgspec
import numpy as np
import polars as pl

from steptally.errors import WriteError
from steptally.trace.intervals import Intervals, merge, subtract
from steptally.trace.lanes import flat_lanes, nested_lanes
from steptally.trace.schema import DEVICE_KINDS, Trace
from steptally.trace.steps import step_windows

# Kineto's categories, so that tools which know them find their events again.
_CATEGORIES = {
    "compute": "kernel",
    "communication": "kernel",
    "copy": "gpu_memcpy",
    "memset": "gpu_memset",
    "graph": "kernel",
    "device_annotation": "gpu_user_annotation",
    "device_sync": "cuda_sync",
    "launch": "cuda_runtime",
    "annotation": "user_annotation",
    "step": "user_annotation",
    "instrument": "overhead",
}
_NUMBERS = ("step", "correlation", "bytes", "graph")
_HEADER = b'{"displayTimeUnit": "ns", "baseTimeNanoseconds": %d,\n"traceEvents": [\n'
_LANES = 64  # of one stream or thread; more would be no drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """An added row of a rank: intervals in the trace's nanoseconds, each with a label."""

    name: str
    intervals: Intervals
    labels: Sequence[str]


def device_tracks(trace: Trace) -> list[Track]:
    """Steps, exposed communication, and the communication of each process group, as unions."""
    events = trace.events
    windows = step_windows(events)
    spans = windows.select("start_ns", "end_ns").to_numpy()
    tracks = [_track("steps", spans, [f"step {number}" for number in windows["step"]])]
    compute = _union(events.filter(pl.col("kind") == "compute"))
    communication = events.filter(pl.col("kind") == "communication")
    exposed = subtract(_union(communication), compute)
    tracks.append(_track("exposed communication", exposed, ["exposed"] * len(exposed)))
    for (group,), own in sorted(communication.group_by("group"), key=lambda item: str(item[0])):
        union = _union(own)
        tracks.append(_track(f"group {group}", union, [str(group)] * len(union)))
    return [track for track in tracks if len(track.intervals)]


def write_perfetto(path: Path, traces: Iterable[tuple[Trace, Sequence[Track]]]) -> None:
    """Write traces with their added tracks; `.gz` packs. Raises `WriteError`.

    All are drawn on one clock: that of their files, less the first one's earliest event.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path) as file:
            _write(file, traces)
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written ({error.strerror or error}): name a file in a directory "
            "that may be written, on a disk with room."
        ) from error


def _opened(path: Path) -> IO[bytes]:
    if path.suffix != ".gz":
        return path.open("wb")
    return cast(IO[bytes], gzip.open(path, "wb", compresslevel=4))


def _write(file: IO[bytes], traces: Iterable[tuple[Trace, Sequence[Track]]]) -> None:
    base_ns = None
    for number, (trace, tracks) in enumerate(traces):
        if base_ns is None:
            first = trace.events["start_ns"].min()
            base_ns = first if isinstance(first, int) else 0
            file.write(_HEADER % base_ns)
        for lines in _process(number, trace, tracks, base_ns):
            file.write(b"".join(line + b",\n" for line in lines))
    if base_ns is None:
        file.write(_HEADER % 0)
    file.write(_named("process_labels", 0, 0, "") + b"\n]}\n")


def _process(
    number: int, trace: Trace, tracks: Sequence[Track], base_ns: int
) -> Iterator[Iterable[bytes]]:
    """The events of one rank."""
    name = f"rank {trace.rank}" if trace.rank is not None else trace.source.name
    if trace.device is not None:
        name += f", device {trace.device}"
    yield [_named("process_name", number, 0, name)]
    thread = 0
    for thread, track in enumerate(tracks, start=1):
        yield [_named("thread_name", number, thread, track.name), _sorted(number, thread)]
        yield _track_lines(number, thread, track, base_ns)
    for label, rows in _rows(trace.events):
        lanes = rows["lane"].to_numpy()
        for lane in range(int(lanes.max()) + 1):
            thread += 1
            shown = label if lane == 0 else f"{label}, overlapping ({lane + 1})"
            yield [_named("thread_name", number, thread, shown), _sorted(number, thread)]
            yield _event_lines(number, thread, rows.filter(pl.Series(lanes == lane)), base_ns)


def _rows(events: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The events of each stream, then of each host thread, with their lanes."""
    length = pl.col("end_ns") - pl.col("start_ns")
    on_device = pl.col("kind").is_in(DEVICE_KINDS)
    drawn = events.sort("start_ns", length, descending=[False, True])
    # Annotations on a stream hold kernels: they are drawn beside them, as calls.
    marks = pl.col("kind") == "device_annotation"
    for rows, keys, lanes, text in (
        (drawn.filter(on_device & ~marks), ["device", "stream"], flat_lanes, "device {} stream {}"),
        (
            drawn.filter(marks),
            ["device", "stream"],
            nested_lanes,
            "device {} stream {} annotations",
        ),
        (drawn.filter(~on_device), ["process", "thread"], nested_lanes, "process {} thread {}"),
    ):
        parts = rows.partition_by(keys, as_dict=True, maintain_order=True)
        for key, own in sorted(parts.items(), key=lambda item: [part or 0 for part in item[0]]):
            lane = lanes(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
            label = text.format(*("?" if part is None else part for part in key))
            yield label, own.with_columns(lane=pl.Series(np.minimum(lane, _LANES - 1)))


def _event_lines(pid: int, tid: int, rows: pl.DataFrame, base_ns: int) -> Iterable[bytes]:
    kind = pl.col("kind").cast(pl.String)
    lines = rows.select(
        pl.concat_str(
            pl.lit(f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": '),
            _microseconds(pl.col("start_ns") - base_ns),
            pl.lit(', "dur": '),
            _microseconds(pl.col("end_ns") - pl.col("start_ns")),
            pl.lit(', "cat": "'),
            kind.replace_strict(_CATEGORIES, default="cpu_op"),
            pl.lit('", "name": '),
            _spelled(rows["name"]),
            pl.lit(', "args": {"kind": "'),
            kind,
            pl.lit('"'),
            *(_argument(name, pl.col(name).cast(pl.String)) for name in _NUMBERS),
            *(_argument(name, _spelled(rows[name])) for name in ("group", "launch_shape")),
            pl.lit("}}"),
        )
    )
    return (line.encode() for line in lines.to_series())


def _argument(name: str, spelled: pl.Expr) -> pl.Expr:
    """`, "name": value` where there is a value."""
    told = pl.concat_str(pl.lit(f', "{name}": '), spelled)
    return pl.when(spelled.is_not_null()).then(told).otherwise(pl.lit(""))


def _spelled(texts: pl.Series) -> pl.Expr:
    """A column's texts as JSON; each is encoded once."""
    distinct = texts.drop_nulls().unique()
    codes = pl.DataFrame({"text": distinct, "spelled": [_json(text) for text in distinct]})
    column = pl.DataFrame({"text": texts}).join(codes, on="text", how="left", maintain_order="left")
    return pl.lit(column["spelled"])


def _track_lines(pid: int, tid: int, track: Track, base_ns: int) -> list[bytes]:
    rows = zip(track.intervals.tolist(), track.labels, strict=True)
    return [
        msgspec.json.encode(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": (start - base_ns) / 1000,
                "dur": (end - start) / 1000,
                "cat": "steptally",
                "name": label,
            }
        )
        for (start, end), label in rows
    ]


def _microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    """Nanoseconds as decimal text, every digit; events before the base are negative."""
    size = nanoseconds.abs()
    whole, rest = (size // 1000).cast(pl.String), (size % 1000).cast(pl.String).str.zfill(3)
    sign = pl.when(nanoseconds < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(sign, whole, pl.lit("."), rest)


def _named(kind: str, pid: int, tid: int, name: str) -> bytes:
    about = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
    return msgspec.json.encode(about)


def _sorted(pid: int, tid: int) -> bytes:
    about = {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid}
    return msgspec.json.encode(about | {"args": {"sort_index": tid}})


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _union(events: pl.DataFrame) -> Intervals:
    return merge(events["start_ns"].to_numpy(), events["end_ns"].to_numpy())


def _track(name: str, intervals: Intervals, labels: Sequence[str]) -> Track:
    return Track(name=name, intervals=intervals, labels=labels)
