"""What the runtime's calls are for: launches of graphs, calls that wait, calls no graph may hold.

Names are those of CUDA's and HIP's runtime and driver, with nsys's suffixes (`_v3020`, `_ptsz`).
"""

from __future__ import annotations

import polars as pl

from steptally.trace.first_places import NOWHERE, first_places

_GRAPH = r"(?i)GraphLaunch"
# Calls that return only when the device has done what it was given before.
_SYNCHRONISES = (
    r"Synchronize|^hipMemcpyWithStream|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?(_|$)"
    r"|^cuMemcpy(DtoH|HtoD|DtoD)?(_v\d+)?$"
)
# What stream capture forbids, or a graph could not repeat: waiting, and changing what is allocated.
_NOT_CAPTURED = rf"{_SYNCHRONISES}|(Malloc|Free|HostAlloc|HostRegister|MemAlloc|MemFree)(_|Host|$)"
_CAPTURES = r"StreamEndCapture|GraphInstantiate"
_LAUNCHES = r"Launch"
_NO_KERNEL = rf"{_GRAPH}|HostFunc|MultiDevice|LaunchAttribute"


def is_graph_launch(work: pl.DataFrame) -> pl.Series:
    """Whether the launch of each row replays a CUDA or HIP graph; false where none is known."""
    return _named(work, _GRAPH).fill_null(False)


def graph_launches(launches: pl.DataFrame) -> pl.DataFrame:
    """The calls that replay a graph."""
    return launches.filter(_named(launches, _GRAPH))


def unseen_replays(work: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """The graph launches of which no work of the device was recorded."""
    replays = graph_launches(launches)
    if replays.is_empty():
        return replays
    return without_work(replays, work)


def without_work(launches: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The calls of which no work of the device was recorded."""
    return launches.filter(first_places(work["correlation"], launches["correlation"]) == NOWHERE)


def capturing_calls(launches: pl.DataFrame) -> pl.DataFrame:
    """The calls that end the capture of a graph, or make one ready to run."""
    return launches.filter(_named(launches, _CAPTURES))


def synchronising_calls(launches: pl.DataFrame) -> pl.DataFrame:
    """The calls that wait for the device."""
    return launches.filter(_named(launches, _SYNCHRONISES))


def uncapturable_calls(launches: pl.DataFrame) -> pl.DataFrame:
    """The calls that no CUDA graph can hold."""
    return launches.filter(_named(launches, _NOT_CAPTURED))


def kernel_launches(launches: pl.DataFrame) -> pl.DataFrame:
    """The calls that each put one kernel on the device."""
    return launches.filter(_named(launches, _LAUNCHES, but=_NO_KERNEL))


def launching_threads(work: pl.DataFrame) -> list[int | None]:
    """The host threads that launched any of the device's work."""
    return work.filter(pl.col("launch_start_ns").is_not_null())["thread"].unique().to_list()


def _named(launches: pl.DataFrame, pattern: str, but: str = r"$^") -> pl.Series:
    """Matches each distinct name once: a recording has hundreds of thousands of calls."""
    name = launches["launch_name"]
    distinct = name.unique()
    texts = distinct.cast(pl.String)
    wanted = distinct.filter(texts.str.contains(pattern) & ~texts.str.contains(but))
    return name.is_in(wanted.implode())
