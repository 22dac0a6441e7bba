"""Op tables of other tools: one row per operation of a rank, with a name and its times.

Such as those of ByteDance's StragglerAnalysis: `rank`, `step`, `optype`, `start_ts` and `duration`
in seconds. Times in whole nanoseconds (`start_ns`, `end_ns`, `duration_ns`) are read as they are.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from steptally.errors import InputError
from steptally.trace.kinds import Rules, load_rules
from steptally.trace.schema import COLLECTIVES, EVENTS, OPERATORS, UNATTRIBUTED, Loss, Trace, empty

_NAMES = ("name", "optype", "op", "op_name")
# Column to the nanoseconds in its unit.
_STARTS = {"start_ns": 1, "start_us": 1_000, "start_s": 10**9, "start_ts": 10**9}
_ENDS = {"end_ns": 1, "end_us": 1_000, "end_s": 10**9, "end_ts": 10**9}
_DURATIONS = {"duration_ns": 1, "duration_us": 1_000, "duration_s": 10**9, "duration": 10**9}


def foreign_ranks(path: Path, table: pl.DataFrame) -> list[int | None]:
    """The ranks in the column `rank`, in order; one unknown rank without that column."""
    _check(path, table)
    if "rank" not in table.columns:
        return [None]
    ranks = table["rank"].cast(pl.Int64, strict=False).drop_nulls().unique().sort()
    return list(ranks)


def read_foreign(
    path: Path, table: pl.DataFrame, rank: int | None, rules: Rules | None = None
) -> Trace:
    """The rows of `rank`, or all where the table names no ranks.

    What is named like communication is communication, all else compute, where the table has no
    column `kind`. Raises `InputError` where there is no such rank or a column is missing.
    """
    ranks = foreign_ranks(path, table)
    if ranks != [None]:
        rank = ranks[0] if rank is None and len(ranks) == 1 else rank
        if rank not in ranks:
            raise InputError(
                f"{path} holds {len(ranks)} ranks ({ranks[0]} to {ranks[-1]}), and rank {rank} is "
                "none of them: name one that is there."
            )
        table = table.filter(pl.col("rank").cast(pl.Int64, strict=False) == rank)
    timed, lost = timed_operations(path, table)
    losses = (
        (Loss(reason="no name, no usable time, or a negative duration", events=lost),)
        if lost
        else ()
    )
    events = _events(timed, rank, rules or load_rules())
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
    )


def timed_operations(path: Path, table: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The rows with a name and usable times, in the columns `name`, `start_ns` and `end_ns` beside
    their own, and how many others there are.

    Raises `InputError` where a column is missing or no row has times.
    """
    _check(path, table)
    name = _first(table, _NAMES)
    start, unit = next((c, u) for c, u in _STARTS.items() if c in table.columns)
    timed = table.with_columns(
        name=pl.col(name).cast(pl.String), start_ns=_nanoseconds(start, unit)
    ).with_columns(end_ns=_end(table))
    if timed["start_ns"].null_count() == len(timed) > 0:
        raise InputError(
            f"{path} holds {len(timed):,} operations without times, as `steptally rehearse --save` "
            f"writes their order: name a recording to account for time."
        )
    usable = (timed["end_ns"] >= timed["start_ns"]).fill_null(False) & timed["name"].is_not_null()
    return timed.filter(usable), int((~usable).sum())


def _events(timed: pl.DataFrame, rank: int | None, rules: Rules) -> pl.DataFrame:
    """The schema's columns, those that the table has and nulls for the others."""
    if "kind" not in timed.columns:
        names = timed["name"].unique().drop_nulls()
        communicates = [name for name in names if rules.is_named_like_communication(name)]
        named = pl.col("name").is_in(communicates)
        timed = timed.with_columns(
            kind=pl.when(named).then(pl.lit("communication")).otherwise(pl.lit("compute"))
        )
    if "group" not in timed.columns:
        is_communication = pl.col("kind").cast(pl.String) == "communication"
        timed = timed.with_columns(group=pl.when(is_communication).then(pl.lit(UNATTRIBUTED)))
    if "stream" not in timed.columns:
        timed = timed.with_columns(stream=pl.lit(0))
    timed = timed.with_columns(rank=pl.lit(rank), collective=pl.lit(None))
    return timed.select(
        (pl.col(n) if n in timed.columns else pl.lit(None)).cast(t, strict=False).alias(n)
        for n, t in EVENTS.items()
    )


def _end(table: pl.DataFrame) -> pl.Expr:
    for column, unit in _ENDS.items():
        if column in table.columns:
            return _nanoseconds(column, unit)
    column, unit = next((c, u) for c, u in _DURATIONS.items() if c in table.columns)
    return pl.col("start_ns") + _nanoseconds(column, unit)


def _nanoseconds(column: str, unit: int) -> pl.Expr:
    if unit == 1:
        return pl.col(column).cast(pl.Int64, strict=False)
    scaled = pl.col(column).cast(pl.Float64, strict=False) * unit
    return scaled.round().cast(pl.Int64, strict=False)


def _first(table: pl.DataFrame, names: tuple[str, ...]) -> str:
    return next(name for name in names if name in table.columns)


def _check(path: Path, table: pl.DataFrame) -> None:
    columns = set(table.columns)
    wanted = {
        "a name": set(_NAMES),
        "a start": set(_STARTS),
        "an end or a duration": {*_ENDS, *_DURATIONS},
    }
    meant = {"rank", "step"}.union(*wanted.values())
    nested = [name for name, kind in table.schema.items() if name in meant and kind.is_nested()]
    if nested:
        raise InputError(
            f"{path} is no op table: its column {nested[0]} holds {table.schema[nested[0]]}, and a "
            "name, a rank, a step or a time is one value a row; write it so, or rename the column."
        )
    missing = [what for what, names in wanted.items() if not columns & names]
    if missing:
        raise InputError(
            f"{path} is no op table: it has no column for {' and '.join(missing)} (its columns: "
            f"{', '.join(table.columns[:12]) or 'none'}). Name them as {', '.join(_NAMES[:2])}; "
            f"{', '.join(_STARTS)}; {', '.join((*_ENDS, *_DURATIONS))}."
        )
