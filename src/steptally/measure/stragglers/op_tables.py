"""Op tables of a Megatron job's pipeline, as one program: 1F1B with its messages and gradients.

Such as ByteDance's StragglerAnalysis publishes: one row per operation with `rank` (or `dp_rank`
and `stage`), `step`, `optype`, `start_ts` and `duration`; `seq_id`, `mb_id`, `mc` (chunk of a
virtual pipeline) and `gmc` (the same, counted over all stages) where they are there. One rank of
each tensor-parallel group is enough.

Operations are told by name: forward-compute, backward-compute; forward-send, forward-recv,
backward-send, backward-recv; params-all-gather, grads-reduce-scatter, separate-grads-all-reduce
(over dp), embedding-grads-all-reduce (first and last stage), optimizer-clip-main-grad (all).
Any other is a rank's own work (optimizer, gc, …) or, where its name ends in a collective's, a
collective among ranks that the table does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from steptally.errors import InputError
from steptally.measure.stragglers.lanes import program_order
from steptally.measure.stragglers.program import OPERATIONS, Program, Worker, continued
from steptally.trace.foreign_table import timed_operations

MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
COMPUTE = ("forward-compute", "backward-compute")
# A collective's members: over which axis, with all else equal.
OVER_DP = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
OVER_ENDS = ("embedding-grads-all-reduce",)  # Megatron's embedding group: first and last stage
OVER_ALL = ("optimizer-clip-main-grad",)
_COLLECTIVE = re.compile(r"-(all-reduce|all-gather|reduce-scatter)$")
_AXES = {"tp_rank": "tp", "cp_rank": "cp", "ep_rank": "ep", "dp_rank": "dp", "stage": "pp"}


def is_pipeline_table(table: pl.DataFrame) -> bool:
    """Whether an op table tells the passes of a pipeline by name."""
    return "optype" in table.columns and bool(
        table["optype"].cast(pl.String).is_in(list(COMPUTE)).any()
    )


def program_of_tables(tables: Sequence[tuple[Path, pl.DataFrame]]) -> Program:
    """One program of one job's op tables. Raises `InputError` where columns are missing."""
    timed, lost = [], 0
    for path, table in tables:
        usable, gone = timed_operations(path, table)
        timed.append(_placed(path, usable))
        lost += gone
    table = pl.concat(timed, how="diagonal_relaxed").sort("step", "rank", "start_ns", "end_ns")
    table = _with_instances(_named(table))
    before, after = program_order(table)
    notes = [f"{lost:,} operations without usable times are left out"] if lost else []
    program = Program(
        operations=table.select(pl.col(n).cast(t) for n, t in OPERATIONS.items()),
        before=before,
        after=after,
        fused=_fused(table),
        workers=_workers(table),
        notes=notes,
    )
    return continued(program)


def _placed(path: Path, table: pl.DataFrame) -> pl.DataFrame:
    """With the columns `rank`, `step`, `dp_rank`, `stage`, whole numbers."""
    missing = [name for name in ("dp_rank", "stage", "optype") if name not in table.columns]
    if missing:
        raise InputError(
            f"{path} has no column {' and '.join(missing)}: an op table of a pipeline needs "
            "dp_rank, stage, step, optype and times, one row per operation."
        )
    if "step" not in table.columns:
        table = table.with_columns(step=pl.lit(0))
    if "rank" not in table.columns:
        stages = int(table["stage"].max()) + 1  # type: ignore[arg-type]
        table = table.with_columns(rank=pl.col("dp_rank").cast(pl.Int64) * stages + pl.col("stage"))
    whole = [name for name in ("rank", "step", *_AXES) if name in table.columns]
    table = table.with_columns(pl.col(whole).cast(pl.Int64, strict=False))
    if table.select(whole).null_count().sum_horizontal().item():
        raise InputError(
            f"{path} has rows whose {', '.join(whole)} are no whole numbers: every operation needs "
            "its rank, step and place."
        )
    return table


def _named(table: pl.DataFrame) -> pl.DataFrame:
    """With `operation`, `phase`, `lane`, `position`, `microbatch` and `chunk`."""
    operation = pl.col("optype").cast(pl.String)
    named = table.with_columns(
        operation=operation,
        phase=operation.str.extract("^(forward|backward)-").fill_null(""),
        part=pl.when(operation.str.contains("expert")).then(pl.lit("expert")).otherwise(pl.lit("")),
        busy_ns=pl.lit(None, dtype=pl.Int64),
        share=pl.lit(None, dtype=pl.Float64),
        microbatch=_known(table, "mb_id"),
        chunk=_known(table, "mc"),
    )
    return named.with_columns(
        position=pl.int_range(pl.len()).over("rank", "step", "operation"), lane=_lane()
    )


def _known(table: pl.DataFrame, name: str) -> pl.Expr:
    """A column in which −1 means unknown, or nulls."""
    if name not in table.columns:
        return pl.lit(None, dtype=pl.Int64)
    column = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(column >= 0).then(column)


def _lane() -> pl.Expr:
    """Messages of each kind have a lane, all collectives share one, own work is the rank's main."""
    operation = pl.col("operation")
    joined = operation.is_in([*OVER_DP, *OVER_ENDS, *OVER_ALL]) | operation.str.contains(
        _COLLECTIVE.pattern
    )
    return (
        pl.when(operation.is_in(list(MESSAGES)))
        .then(operation)
        .when(joined)
        .then(pl.lit("collectives"))
        .otherwise(pl.lit("main"))
    )


def _with_instances(table: pl.DataFrame) -> pl.DataFrame:
    """With the number of the collective or message that an operation is a member of."""
    keyed = _with_messages(table.with_row_index("row")).with_columns(
        key=pl.when(pl.col("operation").is_in(list(OVER_DP)))
        .then(pl.format("{} {} {} pp{}", "operation", "step", "position", "stage"))
        .when(pl.col("operation").is_in(list(OVER_ENDS)))
        .then(pl.format("{} {} {} dp{}", "operation", "step", "position", "dp_rank"))
        .when(pl.col("operation").is_in(list(OVER_ALL)))
        .then(pl.format("{} {} {}", "operation", "step", "position"))
        .otherwise(pl.col("message"))
    )
    # Each rank can be in one once (tensor-parallel ranks have messages and replicas of their own).
    others = [name for name in ("tp_rank", "cp_rank", "ep_rank") if name in table.columns]
    alone = pl.col("key").is_null()
    numbered = keyed.with_columns(
        instance=pl.when(~alone).then(pl.struct("key", *others).rank("dense").cast(pl.Int64))
    )
    return numbered.sort("row").drop("row")


def _with_messages(table: pl.DataFrame) -> pl.DataFrame:
    """With `message`: equal for the k-th send of a stage and the k-th receive of its neighbour.

    Sends beyond the last chunk of the model, and receives before its first, are not messages: some
    recorders write them, empty. They are told by the stage and chunk that computes.
    """
    stages = int(table["stage"].max()) + 1  # type: ignore[arg-type]
    if stages == 1:
        return table.with_columns(message=pl.lit(None, dtype=pl.String))
    forward, send = pl.col("phase") == "forward", pl.col("operation").str.ends_with("-send")
    # A message is named by the stage it comes from; forward ones go up, backward ones down.
    comes_from = (
        pl.when(send)
        .then(pl.col("stage"))
        .when(forward)
        .then((pl.col("stage") - 1) % stages)
        .otherwise((pl.col("stage") + 1) % stages)
    )
    real = pl.col("operation").is_in(list(MESSAGES)) & ~_is_empty_message(table, stages)
    told = table.with_columns(real=real, comes_from=comes_from).with_columns(
        turn=pl.int_range(pl.len()).over("rank", "step", "operation", "real")
    )
    name = pl.format("{} {} {} dp{} from{}", "phase", "step", "turn", "dp_rank", "comes_from")
    return told.with_columns(message=pl.when("real").then(name))


def _is_empty_message(table: pl.DataFrame, stages: int) -> pl.Expr:
    """Whether nobody is there to send to or receive from: the ends of a pipeline without chunks."""
    chunks = int(table["chunk"].max() or 0) + 1  # type: ignore[arg-type]
    if chunks > 1:
        return pl.lit(False)
    first, last = pl.col("stage") == 0, pl.col("stage") == stages - 1
    up = pl.col("operation").is_in(["forward-send", "backward-recv"])
    down = pl.col("operation").is_in(["forward-recv", "backward-send"])
    return (last & up) | (first & down)


def _fused(table: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of messages of one rank with the same start and end: one batch, one wait."""
    messages = table.with_row_index("at").filter(pl.col("message").is_not_null())
    keys = ["rank", "step", "start_ns", "end_ns"]
    grouped = messages.group_by(keys, maintain_order=True).agg("at")
    pairs = grouped.filter(pl.col("at").list.len() == 2)["at"]
    left = pairs.list.get(0).to_numpy().astype(np.int64)
    right = pairs.list.get(1).to_numpy().astype(np.int64)
    return left, right


def _workers(table: pl.DataFrame) -> dict[int, Worker]:
    axes = {column: axis for column, axis in _AXES.items() if column in table.columns}
    ranks = table.select("rank", *axes).unique("rank").sort("rank")
    return {
        rank: Worker(rank=rank, coordinates=dict(zip(axes.values(), places, strict=True)))
        for rank, *places in ranks.iter_rows()
    }
