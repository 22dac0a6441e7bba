"""Reads one rank's Kineto trace (torch.profiler's JSON, plain or .gz) into the columnar schema.

    trace = read_kineto(Path("runs/…/traces/rank0.json.gz"))
    trace.events.filter(kind="communication")

Dialects from 2021 to 2026, of NVIDIA, AMD and CPU runs: times as integers, decimals or text, with
or without `baseTimeNanoseconds`; an object or a bare list. Damaged files are read as far as they go
and `Trace.losses` states the rest.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from steptally.errors import InputError
from steptally.trace.checks import suspect_kernels
from steptally.trace.gloo import attribute_transfers
from steptally.trace.kinds import Rules, load_rules
from steptally.trace.kineto_blocks import read_blocks
from steptally.trace.kineto_columns import Columns
from steptally.trace.kineto_events import ENDS_EARLY, DecodedFile
from steptally.trace.kineto_format import FileInfo
from steptally.trace.kineto_frames import collective_frame, event_frame, operator_frame
from steptally.trace.kineto_names import Names
from steptally.trace.rank_names import rank_in_name
from steptally.trace.schema import Loss, ProcessGroup, Trace

_YEAR_2000_NS = 946_684_800 * 10**9
# What only shapes, products and CPU time need: most of a trace's rows.
_HOST_DETAIL = frozenset(("operator", "issue", "instrument"))


def read_kineto(
    path: Path,
    rank: int | None = None,
    rules: Rules | None = None,
    *,
    low_memory: bool = False,
) -> Trace:
    """The trace in `path`; its rank is `rank`, or what the file says, or what its name says.

    `rules` tell the kinds of events, steptally's own by default. `low_memory` leaves out the
    operators of the host where the trace has a device. Raises `InputError` where the file cannot
    be read or is no Kineto trace.
    """
    rules = rules or load_rules()
    gathered = _gather(path, rules, _HOST_DETAIL if low_memory else frozenset())
    if low_memory and not gathered.columns.has_device_work:
        gathered = _gather(path, rules, frozenset())
    columns, info = gathered.columns, gathered.info
    if not columns.rows and gathered.losses:
        raise InputError(
            f"{path} is damaged beyond use: no event could be read "
            f"({gathered.losses[0].sentence()}). Export or copy it again."
        )
    about = info.distributed if isinstance(info.distributed, dict) else {}
    stated_rank = _integer(about.get("rank"), below=1 << 31)
    if rank is None:
        rank = rank_in_name(path) if stated_rank is None else stated_rank
    collectives, operators = collective_frame(columns), operator_frame(columns)
    base_ns = _integer(info.base_time_ns, below=1 << 62) or 0
    events = event_frame(columns, collectives, base_ns, rank)
    return Trace(
        source=path,
        rank=rank,
        world_size=_integer(about.get("world_size"), below=1 << 31),
        backend=str(about["backend"]) if about.get("backend") else None,
        groups=_process_groups(about.get("pg_config")),
        events=attribute_transfers(events, collectives, operators),
        collectives=collectives,
        operators=operators,
        losses=gathered.losses,
        warnings=(
            *_warnings(path, columns, rank, stated_rank),
            *_lost_base(path, gathered, events),
            *suspect_kernels(path, events, rules),
        ),
    )


class _Gathered(NamedTuple):
    columns: Columns
    info: FileInfo
    losses: tuple[Loss, ...]


def _gather(path: Path, rules: Rules, left_out: frozenset[str]) -> _Gathered:
    """One pass over the file; events of the kinds in `left_out` are skipped."""
    losses: list[Loss] = []
    decoded = DecodedFile(blocks=read_blocks(path, losses))
    columns = Columns(names=Names(rules, left_out))
    with _collector_paused():
        for block in decoded.events():
            columns.add(block)
    return _Gathered(columns, decoded.info, (*losses, *decoded.losses(), *columns.losses()))


def _process_groups(configuration: Any) -> tuple[ProcessGroup, ...]:
    """The groups of `distributedInfo`, as far as they are well formed."""
    return tuple(
        ProcessGroup(
            name=str(group["pg_name"]),
            description=str(group.get("pg_desc", "")),
            ranks=tuple(rank for rank in _list(group.get("ranks")) if isinstance(rank, int)),
        )
        for group in _list(configuration)
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


def _lost_base(path: Path, gathered: _Gathered, events: pl.DataFrame) -> Iterator[str]:
    """Kineto writes the base of its clock behind the events; without it times are small."""
    ended_early = any(loss.reason == ENDS_EARLY for loss in gathered.losses)
    is_unix = (events["start_ns"] > _YEAR_2000_NS).all()
    if ended_early and gathered.info.base_time_ns is None and not is_unix:
        yield (
            f"{path}: its end is missing, and with it the base of its clock "
            "(baseTimeNanoseconds): its times cannot be laid beside another rank's"
        )


def _integer(value: Any, below: int) -> int | None:
    """The value where it is a number, or the text of one, from 0 on and below the limit."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < below else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
