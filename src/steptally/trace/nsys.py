"""Reads Nsight Systems exports (SQLite) into the columnar schema: a trace for each device.

    for part in nsys_parts(path):
        trace = read_nsys(path, part)

One export may hold several processes and devices, whose stream numbers repeat, so each device of
each process is a trace of its own. Exported by `nsys export --type sqlite` (or `nsys profile
--export sqlite`); tables and columns of the schema versions seen from 3.0 to 3.25.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from steptally.errors import InputError
from steptally.trace.checks import suspect_kernels
from steptally.trace.kinds import Rules, load_rules
from steptally.trace.nsys_database import (
    ABSENT,
    Database,
    Int64s,
    distinct_and_places,
    open_database,
    or_null,
)
from steptally.trace.nsys_host import host_frames
from steptally.trace.nsys_nccl import kernel_groups
from steptally.trace.schema import (
    COLLECTIVES,
    EVENTS,
    OPERATORS,
    UNATTRIBUTED,
    Trace,
    by_reason,
    empty,
)
from steptally.trace.steps import assign_steps

_TABLE = "CUPTI_ACTIVITY_KIND_"
_DEVICE_TABLES = tuple(_TABLE + name for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
_LAST_DEVICE = 2**31 - 1  # a larger number is damage
_PLACE = {"stream": "streamId", "correlation": "correlationId"}
# A grid's sizes fit 31, 16 and 16 bits, a block's 11, 11 and 7: each is one number.
_SHAPE = {
    "grid": "gridX + (gridY << 31) + (gridZ << 47)",
    "block": "blockX + (blockY << 11) + (blockZ << 22)",
}
# CUPTI's CUpti_ActivityMemcpyKind, in Kineto's words.
_COPIES = {
    1: "Memcpy HtoD (Host -> Device)",
    2: "Memcpy DtoH (Device -> Host)",
    8: "Memcpy DtoD (Device -> Device)",
    9: "Memcpy HtoH (Host -> Host)",
    10: "Memcpy PtoP (Device -> Device)",
    11: "Memcpy HtoD (Unified -> Device)",
    12: "Memcpy DtoH (Device -> Unified)",
    13: "Memcpy DtoD (Unified -> Unified)",
}
_PEER = 10
# CUPTI's CUpti_ActivitySynchronizationType.
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


class Part(NamedTuple):
    """One device of one process; `global_pid` is None where an export does not tell processes."""

    global_pid: int | None
    device: int

    @property
    def process(self) -> int | None:
        """The operating system's number: `global_pid` also holds the machine's."""
        return None if self.global_pid is None else self.global_pid >> 24 & 0xFFFFFF

    def where(self) -> str:
        """The SQL condition for rows of device work."""
        process = "" if self.global_pid is None else f" AND globalPid = {self.global_pid}"
        return f"deviceId = {self.device}{process}"


def nsys_parts(path: Path) -> list[Part]:
    """The devices with any work, by process. Raises `InputError` where there are none."""
    found: set[Part] = set()
    with open_database(path) as database:
        for table in _DEVICE_TABLES:
            if not database.has(table, "deviceId"):
                continue
            process = "globalPid" if database.has(table, "globalPid") else "NULL"
            found |= {
                Part(pid if isinstance(pid, int) else None, device)
                for pid, device in database.distinct(table, f"{process}, deviceId")
                if isinstance(device, int) and abs(device) <= _LAST_DEVICE
            }
        damage = database.losses
    if not found:
        why = f" ({damage[0].sentence()})" if damage else ""
        raise InputError(
            f"{path} holds no work of a CUDA device{why}: it needs the tables of nsys profile "
            "--trace=cuda,nvtx, exported by nsys export --type sqlite."
        )
    return sorted(found, key=lambda part: (part.global_pid or 0, part.device))


def read_nsys(path: Path, part: Part, rank: int | None = None, rules: Rules | None = None) -> Trace:
    """The trace of one device of an export; its rank is `rank`, since exports do not tell it.

    Times are Unix time where the export tells when its session began. Raises `InputError` where
    the file cannot be read.
    """
    rules = rules or load_rules()
    with open_database(path) as database:
        frames = [
            _kernels(database, part, rules),
            _copies(database, part, rules),
            _simple(database, part, "MEMSET", "Memset (Device)", "memset"),
            _simple(database, part, "GRAPH_TRACE", "CUDA graph", "graph"),
            _syncs(database, part),
            *host_frames(database, part.global_pid, rules),
        ]
        base_ns = _session_start(database, frames)
        losses = by_reason(database.losses)
    events = _complete(_with_groups(pl.concat(frames, how="diagonal")), part, rank, base_ns)
    return Trace(
        source=path,
        rank=rank,
        world_size=None,
        backend=None,
        groups=(),
        events=events,
        collectives=empty(COLLECTIVES),
        operators=empty(OPERATORS),
        losses=losses,
        warnings=tuple(suspect_kernels(path, events, rules)),
        process=part.process,
        device=part.device,
    )


def _kernels(database: Database, part: Part, rules: Rules) -> pl.DataFrame:
    table = f"{_TABLE}KERNEL"
    spellings = ("demangledName", "shortName", "mangledName")
    name = next((column for column in spellings if database.has(table, column)), "NULL")
    wanted = _PLACE | _SHAPE | {"graph": "graphId", "name": name}
    found = database.intervals(table, wanted, part.where())
    names, places = database.texts(found["name"], missing="(unnamed kernel)")
    found["graph"][found["graph"] == 0] = ABSENT
    kinds = [rules.kind("kernel", text) for text in names]
    return _frame(found, names, kinds, places, launch_shape=_launch_shapes(found))


def _copies(database: Database, part: Part, rules: Rules) -> pl.DataFrame:
    """Memory copies; one between two devices is a peer's, whatever the driver calls it."""
    wanted = _PLACE | {"bytes": "bytes", "copy": "copyKind"}
    ends = {"source": "ifnull(srcDeviceId, -1)", "destination": "ifnull(dstDeviceId, -1)"}
    found = database.intervals(f"{_TABLE}MEMCPY", wanted | ends, part.where())
    source, destination = found["source"], found["destination"]
    between = (source >= 0) & (destination >= 0) & (source != destination)
    copies, places = distinct_and_places(np.where(between, _PEER, found["copy"]))
    names = [_COPIES.get(int(copy), "Memcpy") for copy in copies]
    return _frame(found, names, [rules.kind("gpu_memcpy", name) for name in names], places)


def _simple(database: Database, part: Part, table: str, name: str, kind: str) -> pl.DataFrame:
    wanted = _PLACE | {"bytes": "bytes", "graph": "graphId"}
    found = database.intervals(_TABLE + table, wanted, part.where())
    return _frame(found, [name], [kind], np.zeros_like(found["start_ns"]))


def _syncs(database: Database, part: Part) -> pl.DataFrame:
    wanted = _PLACE | {"sync": "syncType", "stream": "ifnull(streamId, -1)"}
    found = database.intervals(f"{_TABLE}SYNCHRONIZATION", wanted, part.where())
    syncs, places = distinct_and_places(found["sync"])
    names = [_SYNCS.get(int(sync), "Sync") for sync in syncs]
    return _frame(found, names, ["device_sync"] * len(names), places)


def _frame(
    found: Mapping[str, Int64s],
    names: Sequence[str],
    kinds: Sequence[str | None],
    places: Int64s,
    launch_shape: pl.Series | None = None,
) -> pl.DataFrame:
    """Device work: times, what of the schema's numbers is told, and the names by their places."""
    numbers = ("stream", "correlation", "bytes", "graph")
    told = {name: or_null(found[name]) for name in numbers if name in found}
    return pl.DataFrame(
        {
            "start_ns": found["start_ns"],
            "end_ns": found["end_ns"],
            "name": pl.Series(names, dtype=pl.String).gather(places),
            "kind": pl.Series(kinds, dtype=EVENTS["kind"]).gather(places),
            **told,
            **({} if launch_shape is None else {"launch_shape": launch_shape}),
        }
    )


def _launch_shapes(found: Mapping[str, Int64s]) -> pl.Series:
    """Grid and block as text; each pair is spelled once."""
    pairs = pl.DataFrame({"grid": found["grid"], "block": found["block"]})
    distinct = pairs.unique()
    spelled = [_shape(grid, block) for grid, block in distinct.iter_rows()]
    texts = distinct.with_columns(pl.Series("text", spelled, dtype=pl.String))
    return pairs.join(texts, on=["grid", "block"], how="left", maintain_order="left")["text"]


def _shape(grid: int, block: int) -> str | None:
    if grid < 0 or block < 0:
        return None
    sizes = (grid & 0x7FFFFFFF, grid >> 31 & 0xFFFF, grid >> 47)
    threads = (block & 0x7FF, block >> 11 & 0x7FF, block >> 22)
    return "[{},{},{}],[{},{},{}]".format(*sizes, *threads)


def _session_start(database: Database, frames: list[pl.DataFrame]) -> int:
    """Unix time of the export's zero; 0 where it is unknown, or where times are Unix already."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if not database.has(table, "utcEpochNs"):
        return 0
    rows = database.rows(f"SELECT utcEpochNs FROM {table}")
    began = rows[0][0] if rows else None
    if not isinstance(began, int):
        return 0
    starts = pl.concat([frame["start_ns"] for frame in frames])
    return 0 if (starts >= began // 2).any() else began


def _with_groups(events: pl.DataFrame) -> pl.DataFrame:
    """The communication's groups: those of NCCL's communicators where its ranges name them."""
    communicates = events["kind"] == "communication"
    group = pl.repeat(None, len(events), dtype=pl.String, eager=True)
    group = group.set(communicates, UNATTRIBUTED)
    calls = events.filter(pl.col("kind") == "issue")
    if calls["payload"].drop_nulls().is_empty():
        return events.with_columns(group.alias("group"))
    launches = events.filter(pl.col("kind") == "launch").drop_nulls("correlation")
    told = kernel_groups(events.filter(communicates), launches, calls)
    group = group.scatter(communicates.arg_true(), told.fill_null(UNATTRIBUTED))
    return events.with_columns(group.alias("group"))


def _complete(events: pl.DataFrame, part: Part, rank: int | None, base_ns: int) -> pl.DataFrame:
    on_device = pl.col("thread").is_null()
    events = events.with_columns(
        start_ns=pl.col("start_ns") + base_ns,
        end_ns=pl.col("end_ns") + base_ns,
        rank=pl.lit(rank),
        device=pl.when(on_device).then(pl.lit(part.device)),
        process=pl.when(~on_device).then(pl.lit(part.process)),
        collective=pl.lit(None),
    )
    return assign_steps(events).select(pl.col(n).cast(t) for n, t in EVENTS.items())
