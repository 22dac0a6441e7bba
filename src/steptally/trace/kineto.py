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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steptally.errors import InputError
from steptally.trace.checks import suspect_kernels
from steptally.trace.gloo import attribute_transfers
from steptally.trace.kinds import Rules, load_rules
from steptally.trace.kineto_blocks import read_blocks
from steptally.trace.kineto_columns import Columns
from steptally.trace.kineto_events import DecodedFile
from steptally.trace.kineto_frames import collective_frame, event_frame, operator_frame
from steptally.trace.kineto_names import Names
from steptally.trace.schema import Loss, ProcessGroup, Trace

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


def read_kineto(path: Path, rank: int | None = None, rules: Rules | None = None) -> Trace:
    """The trace in `path`; its rank is `rank`, or what the file says, or what its name says.

    `rules` tell the kinds of events, steptally's own by default. Raises `InputError` where the
    file cannot be read or is no Kineto trace.
    """
    losses: list[Loss] = []
    decoded = DecodedFile(blocks=read_blocks(path, losses))
    rules = rules or load_rules()
    columns = Columns(names=Names(rules))
    with _collector_paused():
        for block in decoded.events():
            columns.add(block)
    losses += [*decoded.losses(), *columns.losses()]
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
    collectives, operators = collective_frame(columns), operator_frame(columns)
    events = event_frame(columns, collectives, base_ns, rank)
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
        warnings=(
            *_warnings(path, columns, rank, stated_rank),
            *suspect_kernels(path, events, rules),
        ),
    )


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
