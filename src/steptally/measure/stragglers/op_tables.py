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

from steptally.measure.stragglers.lanes import program_order
from steptally.measure.stragglers.op_rows import AXES, COMPUTE, rows_of_job
from steptally.measure.stragglers.program import OPERATIONS, Program, Worker, continued

MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
# A collective's members: over which axis, with all else equal.
OVER_DP = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
OVER_ENDS = ("embedding-grads-all-reduce",)  # Megatron's embedding group: first and last stage
OVER_ALL = ("optimizer-clip-main-grad",)
NEARLY_ALL = 0.95
_COLLECTIVE = re.compile(r"-(all-reduce|all-gather|reduce-scatter)$")


def is_pipeline_table(table: pl.DataFrame) -> bool:
    """Whether an op table tells the passes of a pipeline by name."""
    if "optype" not in table.columns or table.schema["optype"].is_nested():
        return False
    return bool(table["optype"].cast(pl.String).is_in(list(COMPUTE)).any())


def program_of_tables(
    tables: Sequence[tuple[Path, pl.DataFrame]], steps: tuple[int, int] | None = None
) -> Program:
    """One program of one job's op tables, of `steps` (first, last) or all.

    Raises `InputError` where they cannot be used: `op_rows.rows_of_job`.
    """
    rows, notes = rows_of_job(tables, steps)
    table = rows.sort("step", "rank", "start_ns", "end_ns")
    table = _with_instances(_named(table))
    before, after = program_order(table)
    program = Program(
        operations=table.select(pl.col(n).cast(t) for n, t in OPERATIONS.items()),
        before=before,
        after=after,
        fused=_fused(table),
        workers=_workers(table),
        notes=notes,
    )
    return continued(program)


def _named(table: pl.DataFrame) -> pl.DataFrame:
    """With `operation`, `phase`, `lane`, `position`, `microbatch` and `chunk`."""
    operation = pl.col("optype")
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
    """A column, or nulls where there is none."""
    return pl.col(name) if name in table.columns else pl.lit(None, dtype=pl.Int64)


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
    """Whether nobody is there to send to or receive from: before the first chunk of the model on
    the first stage, and after the last on the last.

    With several chunks the others' messages go round, from the last stage to the first. Then the
    empty ones are there only if these stages have a message for every pass.
    """
    chunks = int(table["chunk"].max() or 0) + 1  # type: ignore[arg-type]
    first, last = pl.col("stage") == 0, pl.col("stage") == stages - 1
    up = pl.col("operation").is_in(["forward-send", "backward-recv"])
    down = pl.col("operation").is_in(["forward-recv", "backward-send"])
    counts = dict(table.filter(last).group_by("operation").len().iter_rows())
    sends = counts.get("forward-send", 0)
    # Real ones are for all chunks but one: half of the passes with two, and never for nearly all.
    if 0 < sends < NEARLY_ALL * counts.get("forward-compute", 0):
        return pl.lit(False)
    if chunks == 1:
        return (last & up) | (first & down)
    last, first = last & (pl.col("chunk") == chunks - 1), first & (pl.col("chunk") == 0)
    return ((last & up) | (first & down)).fill_null(False)


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
    axes = {column: axis for column, axis in AXES.items() if column in table.columns}
    ranks = table.select("rank", *axes).unique("rank").sort("rank")
    return {
        rank: Worker(rank=rank, coordinates=dict(zip(axes.values(), places, strict=True)))
        for rank, *places in ranks.iter_rows()
    }
