"""The order of a rank's operations as a table in `trace`'s schema, without durations."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl

from steptally.rehearse.program import Rehearsal
from steptally.trace.run_directory import write_atomically
from steptally.trace.schema import EVENTS

# Beside the columns of a trace's events. `position` is the place in the program; start and end are
# null. `module` is a path in its model chunk; `allocated_bytes` what the rank then has allocated.
OPERATIONS = {
    **EVENTS,
    "position": pl.Int64(),
    "phase": pl.String(),
    "chunk": pl.Int32(),
    "microbatch": pl.Int32(),
    "module": pl.String(),
    "collective_name": pl.String(),
    "group_ranks": pl.String(),
    "m": pl.Int64(),
    "n": pl.Int64(),
    "k": pl.Int64(),
    "batch": pl.Int64(),
    "flops": pl.Int64(),
    "dtype": pl.String(),
    "allocated_bytes": pl.Int64(),
}


def operations_frame(rehearsal: Rehearsal) -> pl.DataFrame:
    """One row an operation, in the order of the rank's program.

    `kind` is `communication` for collectives, whose `group` is Megatron's name and `bytes` the full
    tensor's; else `compute`.
    """
    rows = []
    for position, operation in enumerate(rehearsal.operations):
        collective, product = operation.collective, operation.product
        row = {
            "rank": rehearsal.rank,
            "name": operation.name,
            "kind": "compute" if collective is None else "communication",
            "step": 1,
            "position": position,
            "phase": operation.phase,
            "chunk": operation.place.chunk,
            "microbatch": operation.place.microbatch,
            "module": operation.place.module,
            "allocated_bytes": operation.allocated_bytes,
        }
        if collective is not None:
            row |= {
                "group": collective.group,
                "bytes": collective.size_bytes,
                "collective_name": collective.collective,
                "group_ranks": str(list(collective.ranks)),
                "dtype": collective.dtype,
            }
        if product is not None:
            row |= {
                "m": product.m,
                "n": product.n,
                "k": product.k,
                "batch": product.batch,
                "flops": product.flops,
                "dtype": product.dtype,
            }
        rows.append(row)
    return pl.DataFrame(rows, schema=OPERATIONS)


def write_operations(directory: Path, rehearsal: Rehearsal) -> Path:
    """Write the table as `ops-rankNNNNN.parquet`; raises `WriteError` where it cannot."""
    path = directory / f"ops-rank{rehearsal.rank:05d}.parquet"
    table = io.BytesIO()
    operations_frame(rehearsal).write_parquet(table)
    write_atomically(path, table.getvalue())
    return path
