"""Traces as parquet: steptally's own tables, whole, and op tables of others.

    write_table(trace, Path("rank0.parquet"))
    trace = read_table(Path("rank0.parquet"))

A table of steptally's own has one row per event: the columns of `EVENTS`, then those of its
collective and its operator arguments, null where it has none; what is said of the whole trace
stands in the file's metadata. Another tool's table needs a name, a start and an end or duration
per row; it may hold several ranks (`table_ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from steptally.errors import InputError, WriteError
from steptally.trace.foreign_table import foreign_ranks, read_foreign
from steptally.trace.kinds import Rules
from steptally.trace.schema import COLLECTIVES, EVENTS, OPERATORS, Loss, ProcessGroup, Trace

FORMAT = "steptally-trace/1"
_METADATA = "steptally"
# The tables' columns in a row of their event; the names that two tables share get a prefix.
_COLLECTIVE = {name: f"collective_{name}" for name in COLLECTIVES if name != "event"}
_OPERATOR = {name: f"operator_{name}" for name in OPERATORS if name != "event"}
_HAS_COLLECTIVE = "defines_collective"
_HAS_OPERATOR = "has_arguments"


class _About(msgspec.Struct):
    """What the metadata say of the whole trace."""

    format: str
    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    process: int | None
    device: int | None
    groups: list[tuple[str, str, list[int]]]
    losses: list[tuple[str, int, int]]
    warnings: list[str]


def write_table(trace: Trace, path: Path) -> None:
    """Write a trace as one parquet file. Raises `WriteError` where the disk refuses."""
    yes = pl.lit(True)
    collectives = trace.collectives.rename(_COLLECTIVE).with_columns(yes.alias(_HAS_COLLECTIVE))
    operators = trace.operators.rename(_OPERATOR).with_columns(yes.alias(_HAS_OPERATOR))
    wide = (
        trace.events.with_row_index("event")
        .join(collectives, on="event", how="left", maintain_order="left")
        .join(operators, on="event", how="left", maintain_order="left")
        .drop("event")
        .with_columns(pl.col(_HAS_COLLECTIVE, _HAS_OPERATOR).fill_null(False))
    )
    about = msgspec.json.encode(_about(trace)).decode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        wide.write_parquet(path, metadata={_METADATA: about})
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written ({error.strerror or error}): name a file in a directory "
            "that may be written, on a disk with room."
        ) from error


def read_table(path: Path, rank: int | None = None, rules: Rules | None = None) -> Trace:
    """The trace of `rank` (or the only one) in a parquet file.

    `rules` tell the kinds of another tool's ops. Raises `InputError` where the file cannot be
    read, is damaged, or lacks columns.
    """
    about = _read_about(path)
    if about is None:
        return read_foreign(path, _read(path), rank, rules)
    wide = _read(path).with_row_index("event")
    try:
        return _trace(path, wide, about, rank)
    except (pl.exceptions.PolarsError, KeyError) as error:
        raise InputError(
            f"{path} says that it is {FORMAT} and is not ({_first_line(error)}): save it again."
        ) from error


def table_ranks(path: Path) -> list[int | None]:
    """The ranks that a parquet file holds, of which `read_table` reads one."""
    about = _read_about(path)
    return foreign_ranks(path, _read(path)) if about is None else [about.rank]


def _trace(path: Path, wide: pl.DataFrame, about: _About, rank: int | None) -> Trace:
    own_rank = about.rank if rank is None else rank
    events = wide.select(pl.col(n).cast(t) for n, t in EVENTS.items())
    defining = wide.filter(pl.col(_HAS_COLLECTIVE)).sort("collective")
    return Trace(
        source=path,
        rank=own_rank,
        world_size=about.world_size,
        backend=about.backend,
        groups=tuple(
            ProcessGroup(name=name, description=description, ranks=tuple(ranks))
            for name, description, ranks in about.groups
        ),
        events=events.with_columns(rank=pl.lit(own_rank, dtype=EVENTS["rank"])),
        collectives=_narrow(defining, _COLLECTIVE, COLLECTIVES),
        operators=_narrow(wide.filter(pl.col(_HAS_OPERATOR)), _OPERATOR, OPERATORS),
        losses=tuple(Loss(reason=r, events=e, size_bytes=s) for r, e, s in about.losses),
        warnings=tuple(about.warnings),
        process=about.process,
        device=about.device,
    )


def _narrow(
    wide: pl.DataFrame, names: Mapping[str, str], schema: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    own = (pl.col(names.get(name, name)).cast(kind).alias(name) for name, kind in schema.items())
    return wide.select(own)


def _about(trace: Trace) -> _About:
    return _About(
        format=FORMAT,
        source=str(trace.source),
        rank=trace.rank,
        world_size=trace.world_size,
        backend=trace.backend,
        process=trace.process,
        device=trace.device,
        groups=[(group.name, group.description, list(group.ranks)) for group in trace.groups],
        losses=[(loss.reason, loss.events, loss.size_bytes) for loss in trace.losses],
        warnings=list(trace.warnings),
    )


def _read_about(path: Path) -> _About | None:
    """What the file says of itself; None where another tool wrote it."""
    try:
        text = pl.read_parquet_metadata(path).get(_METADATA)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _unreadable(path, error) from error
    if text is None:
        return None
    try:
        about = msgspec.json.decode(text, type=_About)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} has damaged metadata ({error}): save it again.") from error
    if about.format != FORMAT:
        raise InputError(
            f"{path} has the format {about.format!r}: this steptally reads {FORMAT!r}. Save it "
            "again with this version."
        )
    return about


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be read as parquet ({_first_line(error)}): check the path, or write the "
        "file again."
    )


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
