"""Puts the columns of a file together into the tables of the schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from steptally.trace.kineto_columns import (
    ABSENT,
    DEVICE_COLUMNS,
    EVENT_COLUMNS,
    LAUNCH_COLUMNS,
    OPERATOR_COLUMNS,
    Columns,
    Int64s,
)
from steptally.trace.kineto_names import WAYS
from steptally.trace.schema import COLLECTIVES, DEVICE_KINDS, EVENTS, OPERATORS, UNATTRIBUTED
from steptally.trace.steps import assign_steps

_TWO_LISTS = re.compile(r"\[[^\]]*\],\[[^\]]*\]")


def event_frame(
    columns: Columns, collectives: pl.DataFrame, base_ns: int, rank: int | None
) -> pl.DataFrame:
    """The events, `base_ns` added to their times, in the schema's order of columns."""
    own = _joined(columns.events, EVENT_COLUMNS)
    names = columns.names
    code = pl.Series(own.pop("code") // WAYS)
    kind = pl.Series(names.kinds, dtype=EVENTS["kind"]).gather(code)
    work = _work(columns, own)
    events = pl.DataFrame(
        {
            "kind": kind,
            "name": pl.Series(names.names, dtype=pl.String).gather(code),
            "start_ns": own.pop("start_ns") + base_ns,
            "end_ns": own.pop("end_ns") + base_ns,
            **own,
        }
    )
    on_host = ~pl.col("kind").is_in(DEVICE_KINDS)
    events = events.with_columns(
        *(pl.when(on_host & (pl.col(n) != ABSENT)).then(pl.col(n)) for n in ("process", "thread")),
        *work,
        *_communication(kind, collectives),
        rank=pl.lit(rank),
    )
    return assign_steps(events).select(pl.col(n).cast(t, strict=False) for n, t in EVENTS.items())


def operator_frame(columns: Columns) -> pl.DataFrame:
    """The arguments of those operators where they matter."""
    own = _joined(columns.operators, OPERATOR_COLUMNS)
    texts = pl.Series(columns.texts.texts, dtype=pl.String)
    spelled = {name: texts.gather(own[name]) for name in ("dimensions", "types", "values")}
    numbers = {name: _present(name, own[name]) for name in ("sequence", "forward_thread")}
    told = pl.any_horizontal(pl.col(*spelled, "sequence").is_not_null())
    frame = pl.DataFrame(own | spelled | numbers).filter(told).sort("event")
    return frame.cast(dict(OPERATORS))  # type: ignore[arg-type]


def collective_frame(columns: Columns) -> pl.DataFrame:
    """The collectives that kernels and the recorder's tags describe."""
    return pl.DataFrame(columns.collectives, schema=dict(COLLECTIVES), orient="row")


def group_label(name: str | None, description: str | None) -> str:
    """What a process group is called: by its own description (Megatron's name), else its number."""
    if description and description != "undefined":
        return description
    return f"process group {name}" if name else UNATTRIBUTED


def _work(columns: Columns, events: Mapping[str, Int64s]) -> list[pl.Series]:
    """The columns that only device work and launches have, null elsewhere.

    Device and stream are those of the arguments, else the event's process and thread.
    """
    launches = _joined(columns.launches, LAUNCH_COLUMNS)
    work = _joined(columns.device_work, DEVICE_COLUMNS)
    places = work.pop("event")
    for name, instead in (("device", "process"), ("stream", "thread")):
        told = work[name]
        work[name] = np.where(told == ABSENT, events[instead][places], told)
    work["graph"][work["graph"] == 0] = ABSENT  # CUPTI's id of no graph
    series = []
    for name in list(work):
        spread = np.full(len(events["start_ns"]), ABSENT, dtype=np.int64)
        spread[places] = work.pop(name)
        if name == "correlation":
            spread[launches["event"]] = launches["correlation"]
        series.append(_present(name, spread))
    shapes = pl.Series([_shape(text) for text in columns.shapes.texts], dtype=pl.String)
    series.append(shapes.gather(series.pop()).alias("launch_shape"))
    return series


def _communication(kind: pl.Series, collectives: pl.DataFrame) -> list[pl.Series]:
    """The group of each communication, and its row of the collectives' table."""
    pairs = zip(collectives["group_name"], collectives["group_description"], strict=True)
    labels = [group_label(name, description) for name, description in pairs]
    group = pl.repeat(None, len(kind), dtype=pl.String, eager=True)
    group = group.set(kind.is_in(("communication", "transfer")), UNATTRIBUTED)
    row = pl.repeat(None, len(kind), dtype=pl.Int64, eager=True)
    return [
        group.scatter(collectives["event"], labels).alias("group"),
        row.scatter(collectives["event"], range(len(collectives))).alias("collective"),
    ]


def _joined(blocks: list[dict[str, Int64s]], names: Sequence[str]) -> dict[str, Int64s]:
    """The blocks' columns end to end; the blocks are emptied, since both would need the memory."""
    empty = np.empty(0, dtype=np.int64)
    return {
        name: np.concatenate([block.pop(name) for block in blocks] or [empty]) for name in names
    }


def _present(name: str, values: Int64s) -> pl.Series:
    """A column of numbers that are never negative, null where they are."""
    column = pl.Series(name, values)
    return column.set(column < 0, None)


def _shape(text: str | None) -> str | None:
    """A grid and a block without white space; None where either is missing."""
    spelled = "".join((text or "").split())
    return spelled if _TWO_LISTS.fullmatch(spelled) else None
