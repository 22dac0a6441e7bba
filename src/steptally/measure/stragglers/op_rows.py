"""The rows of a job's op tables, checked: each operation has a rank, a step and a place, each rank
has one place, no pass is there twice, and steps that lack operations are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from steptally.errors import InputError
from steptally.trace.foreign_table import timed_operations

AXES = {"tp_rank": "tp", "cp_rank": "cp", "ep_rank": "ep", "dp_rank": "dp", "stage": "pp"}
COMPUTE = ("forward-compute", "backward-compute")
# What a stage sends, its neighbour receives.
_SENT = {"forward-send": "forward-recv", "backward-send": "backward-recv"}
_LARGEST = 2**31 - 1


def rows_of_job(
    tables: Sequence[tuple[Path, pl.DataFrame]], steps: tuple[int, int] | None = None
) -> tuple[pl.DataFrame, list[str]]:
    """All rows with `rank`, `step`, the axes, `optype`, `mb_id`, `mc`, `start_ns` and `end_ns`, and
    what was left out; only `steps` first to last where given.

    Raises `InputError` for tables that are of no one job, or have none of these steps.
    """
    read = [_placed(path, *timed_operations(path, table)) for path, table in tables]
    source = tables[0][0]
    rows = _of_one_job(source, pl.concat([part for part, _ in read], how="diagonal"))
    if steps is not None:
        rows = _in_steps(source, rows, steps)
    lost = sum(gone for _, gone in read)
    notes = [f"{lost:,} operations without a name or usable times are left out"] if lost else []
    whole, missing = _whole_steps(rows)
    return whole, notes + missing


def _placed(path: Path, table: pl.DataFrame, lost: int) -> tuple[pl.DataFrame, int]:
    """The columns that are used, places and steps as whole numbers; and `lost` as it is."""
    missing = [name for name in ("dp_rank", "stage", "optype") if name not in table.columns]
    if missing:
        raise InputError(
            f"{path} has no column {' and '.join(missing)}: an op table of a pipeline needs "
            "dp_rank, stage, step, optype and times, one row per operation."
        )
    if table.is_empty():
        raise InputError(
            f"{path} has no operation with usable times ({lost:,} without): an operation needs a "
            "start, and an end or a duration that is not negative; name another recording."
        )
    if "step" not in table.columns:
        table = table.with_columns(step=pl.lit(0))
    required = [name for name in ("rank", "step", *AXES) if name in table.columns]
    whole = table.select(
        *(_whole(table, name) for name in required),
        *(_whole(table, name) for name in ("mb_id", "mc") if name in table.columns),
        pl.col("optype").cast(pl.String),
        "start_ns",
        "end_ns",
    )
    for name in required:
        if whole[name].null_count():
            kind = table.schema[name]
            found = kind if kind.is_nested() else table.filter(whole[name].is_null())[name][0]
            raise InputError(
                f"{path} has {whole[name].null_count():,} rows whose {name} is no whole number "
                f"from 0 to {_LARGEST:,} (the first is {found!r}): every operation needs its rank, "
                "step and place; write them so."
            )
    return whole, lost


def _whole(table: pl.DataFrame, name: str) -> pl.Expr:
    """A column as whole numbers from 0, null where it has others."""
    column = pl.col(name)
    if table.schema[name].is_nested():
        return pl.lit(None, dtype=pl.Int64).alias(name)
    if not table.schema[name].is_numeric():
        column = column.cast(pl.String)
    number = column.cast(pl.Int64, strict=False)
    usable = number.is_between(0, _LARGEST)
    if table.schema[name].is_float():
        usable &= column == number
    return pl.when(usable).then(number).alias(name)


def _of_one_job(source: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """The same with `rank`. Raises `InputError` where ranks and places are not one to one."""
    axes = [name for name in AXES if name in rows.columns]
    partly = [name for name in ("rank", *axes) if name in rows.columns and rows[name].null_count()]
    if partly:
        raise InputError(
            f"{source} and the tables beside it differ: only some have the column {partly[0]}; "
            "name tables of one job, written alike."
        )
    if "rank" not in rows.columns:
        place = pl.struct("dp_rank", "stage", *(n for n in axes if n not in ("dp_rank", "stage")))
        rows = rows.with_columns(rank=place.rank("dense").cast(pl.Int64) - 1)
    _check_places(source, rows.select("rank", *axes).unique(), axes)
    _check_passes(source, rows)
    return rows


def _check_places(source: Path, places: pl.DataFrame, axes: Sequence[str]) -> None:
    """Raises `InputError` where a rank has two places, or two ranks have one."""
    moving = places.filter(pl.len().over("rank") > 1).sort("rank", *axes)
    if not moving.is_empty():
        first, second = (moving.select(axes).row(i, named=True) for i in (0, 1))
        raise InputError(
            f"{source} has rank {moving['rank'][0]} at two places, {_shown(first)} and "
            f"{_shown(second)}: a rank has one in a job; name tables of one job, or correct them."
        )
    shared = places.filter(pl.len().over(axes) > 1).sort(*axes, "rank")
    if not shared.is_empty():
        first = shared.select(axes).row(0, named=True)
        raise InputError(
            f"{source} has the ranks {shared['rank'][0]} and {shared['rank'][1]} at one place, "
            f"{_shown(first)}: each rank has its own; add a column that tells them apart (tp_rank, "
            "cp_rank), or keep one rank of each such group."
        )


def _check_passes(source: Path, rows: pl.DataFrame) -> None:
    """Raises `InputError` where a pass is there twice: a file that is named twice, or copied."""
    passes = rows.filter(pl.col("optype").is_in(COMPUTE) & (pl.col("end_ns") > pl.col("start_ns")))
    twice = passes.filter(passes.is_duplicated())
    if not twice.is_empty():
        one = twice.row(0, named=True)
        raise InputError(
            f"{source} and the tables beside it have {len(twice):,} passes more than once, as "
            f"{one['optype']} of rank {one['rank']} at {one['start_ns']} ns in step {one['step']}: "
            "a rank does one at a time; name each table once."
        )


def _shown(place: dict[str, int]) -> str:
    return ", ".join(f"{name} {at}" for name, at in place.items())


def _in_steps(source: Path, rows: pl.DataFrame, steps: tuple[int, int]) -> pl.DataFrame:
    """The rows of the chosen steps."""
    chosen = rows.filter((pl.col("step") >= steps[0]) & (pl.col("step") <= steps[1]))
    if chosen.is_empty():
        known = rows["step"].unique().sort()
        raise InputError(
            f"--steps asks for {steps[0]} to {steps[1]}, and {source} has the steps "
            f"{known[0]} to {known[-1]}: choose from these, or leave it out."
        )
    return chosen


def _whole_steps(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Without the steps in which operations are missing, unless they are in every step.

    Every rank runs the same number of passes in a step, and what is sent is received. Where that
    never holds, the recording has fewer receives than messages, or not all ranks.
    """
    names = [*COMPUTE, *_SENT, *_SENT.values()]
    counts = ((pl.col("optype") == name).sum().cast(pl.Int64).alias(name) for name in names)
    by_rank = rows.group_by("step", "rank").agg(counts)
    even = [pl.col(name).n_unique() == 1 for name in COMPUTE]
    even += [pl.col(sent).sum() == pl.col(received).sum() for sent, received in _SENT.items()]
    by_step = by_rank.group_by("step").agg(even=pl.all_horizontal(even))
    odd = by_step.filter(~pl.col("even"))["step"].sort()
    if odd.is_empty() or len(odd) == len(by_step):
        return rows, []
    some = ", ".join(str(step) for step in odd[:4]) + (" …" if len(odd) > 4 else "")
    note = (
        f"{len(odd):,} of {len(by_step):,} steps are left out ({some}): operations are missing "
        "there, as ranks have unequal numbers of passes, or messages are sent and not received"
    )
    return rows.filter(~pl.col("step").is_in(odd.implode())), [note]
