"""Reads one rank's Kineto trace (torch.profiler's JSON, plain or .gz) into the columnar schema.

    trace = read_kineto(Path("runs/…/traces/rank0.json.gz"))
    trace.events.filter(kind="communication")

Dialects from 2021 to 2026, of NVIDIA, AMD and CPU runs: times as integers, decimals or text, with
or without `baseTimeNanoseconds`; an object or a bare list. Damaged files are read as far as they go
and `Trace.losses` states the rest.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from steptally.errors import InputError
from steptally.trace.gloo import attribute_transfers
from steptally.trace.kineto_blocks import read_blocks
from steptally.trace.kineto_columns import Columns
from steptally.trace.kineto_events import DecodedFile
from steptally.trace.schema import (
    COLLECTIVES,
    EVENTS,
    OPERATORS,
    UNATTRIBUTED,
    Loss,
    ProcessGroup,
    Trace,
)
from steptally.trace.steps import assign_steps

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


def read_kineto(path: Path, rank: int | None = None) -> Trace:
    """The trace in `path`; its rank is `rank`, or what the file says, or what its name says.

    Raises `InputError` where the file cannot be read or is no Kineto trace.
    """
    losses: list[Loss] = []
    decoded = DecodedFile(blocks=read_blocks(path, losses), losses=losses)
    columns = Columns()
    with _collector_paused():
        for block in decoded.events():
            columns.add(block)
    losses.extend(columns.losses())
    distributed = decoded.info.distributed
    about = distributed if isinstance(distributed, dict) else {}
    stated_rank = _integer(about.get("rank"))
    if rank is None:
        rank = _rank_in_name(path) if stated_rank is None else stated_rank
    base_ns = _integer(decoded.info.base_time_ns) or 0
    if not columns.rows and losses:
        raise InputError(
            f"{path} is damaged beyond use: no event could be read ({losses[0].sentence()}). "
            "Export or copy it again."
        )
    collectives = _frame(columns.collectives, COLLECTIVES)
    operators = _frame(columns.operators, OPERATORS)
    events = _complete(columns.events(base_ns), collectives, rank)
    return Trace(
        source=path,
        rank=rank,
        world_size=_integer(about.get("world_size")),
        backend=str(about["backend"]) if about.get("backend") else None,
        groups=_process_groups(about.get("pg_config")),
        events=attribute_transfers(events, collectives, operators),
        collectives=collectives,
        operators=operators,
        losses=tuple(losses),
        warnings=tuple(_warnings(path, columns, rank, stated_rank)),
    )


def group_label(name: str | None, description: str | None) -> str:
    """What a process group is called: by its own description (Megatron's name), else its number."""
    if description and description != "undefined":
        return description
    return f"process group {name}" if name else UNATTRIBUTED


def _complete(events: pl.DataFrame, collectives: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """Add rank, group and step, and put the columns in the schema's order."""
    names = zip(collectives["group_name"], collectives["group_description"], strict=True)
    labels = [group_label(name, description) for name, description in names]
    communicates = events["kind"].is_in(("communication", "transfer"))
    group = pl.repeat(None, len(events), dtype=pl.String, eager=True)
    group = group.set(communicates, UNATTRIBUTED).scatter(collectives["event"], labels)
    row = pl.repeat(None, len(events), dtype=pl.Int64, eager=True)
    row = row.scatter(collectives["event"], range(len(collectives)))
    events = events.with_columns(group.alias("group"), row.alias("collective"), rank=pl.lit(rank))
    return assign_steps(events).select(pl.col(n).cast(t) for n, t in EVENTS.items())


def _frame(rows: list[tuple[Any, ...]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(schema), orient="row")


def _process_groups(configuration: Any) -> tuple[ProcessGroup, ...]:
    """The groups of `distributedInfo`, as far as they are well formed."""
    groups = configuration if isinstance(configuration, list) else []
    return tuple(
        ProcessGroup(
            name=str(group["pg_name"]),
            description=str(group.get("pg_desc", "")),
            ranks=tuple(rank for rank in group.get("ranks") or () if isinstance(rank, int)),
        )
        for group in groups
        if isinstance(group, dict) and "pg_name" in group
    )


def _warnings(
    path: Path, columns: Columns, rank: int | None, stated_rank: int | None
) -> Iterator[str]:
    if stated_rank is not None and stated_rank != rank:
        yield f"{path} is read as rank {rank}, but says that it is of rank {stated_rank}"
    for category, count in columns.unknown_categories.most_common():
        yield (
            f"{path}: {count:,} events of the category {category!r}, which steptally does not "
            "know, are left out. Report the profiler that wrote them."
        )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank_in_name(path: Path) -> int | None:
    found = _RANK_IN_NAME.search(path.name)
    return int(found.group(1)) if found else None


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Python's cyclic collector has nothing to find here and would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
