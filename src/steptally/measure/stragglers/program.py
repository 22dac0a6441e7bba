"""What the ranks did as one program: operations, who waits for whom, and in which order.

Every source (op tables, traces) is brought into this shape; replay and verdicts know no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

Integers = npt.NDArray[np.int64]

# One row per operation of a rank in a step, times on the common clock.
# `operation` is its kind (forward-compute, all-reduce dp …): operations of one kind do the same
# work on ranks that are peers. `lane` runs its operations one after the other. `instance` numbers
# the collective or message that it is a member of; null for the rank's own work. `position` counts
# the operations of one kind within the rank's step, `microbatch` and `chunk` (of a virtual
# pipeline) are null where they are not known. `part` says what else is known of own work: it is
# before the step's first computing (`data`), or that of experts (`expert`). `busy_ns` is the time
# in which it computed, null where that is all of it. `share` is the part that it usually has of
# its rank's time in such operations per step, null where all have the same.
OPERATIONS: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "lane": pl.String(),
    "operation": pl.String(),
    "phase": pl.String(),
    "part": pl.String(),
    "position": pl.Int32(),
    "microbatch": pl.Int32(),
    "chunk": pl.Int32(),
    "instance": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "busy_ns": pl.Int64(),
    "share": pl.Float64(),
}

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank: its places on the parallel axes, as far as they are known, and where it runs."""

    rank: int
    coordinates: Mapping[str, int] = field(default_factory=dict)
    host: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The operations of some steps, and their order.

    `before[i]` must have ended when `after[i]` starts (rows of `operations`, of one rank). All
    members of an instance must have started when one of them can end. `fused` pairs rows of one
    rank that were issued together and end together, as in a batch of messages (left, right): each
    waits for the other's instance too. `expert_bytes` is what each rank's experts got and gave
    back, empty where nothing tells. `continued` says that the steps follow one another without
    a gap, so that a rank brings its lateness into the next one.
    """

    operations: pl.DataFrame
    before: Integers
    after: Integers
    workers: Mapping[int, Worker]
    fused: tuple[Integers, Integers] = field(
        default_factory=lambda: (np.empty(0, np.int64), np.empty(0, np.int64))
    )
    expert_bytes: Mapping[int, int] = field(default_factory=dict)
    continued: bool = False
    notes: Sequence[str] = ()

    @property
    def steps(self) -> list[int]:
        """The steps, ascending."""
        return list(self.operations["step"].unique().sort())

    def with_notes(self, *notes: str) -> Program:
        """The same program with more to say of it."""
        return replace(self, notes=(*self.notes, *notes))


def continued(program: Program) -> Program:
    """The program with each rank's step after its step before, where all steps are consecutive.

    The first operations of a step then wait for the rank's last own work of the step before, and
    for its last collective if that had ended. Where steps are missing, or do not end in order,
    each is for itself.
    """
    steps = program.steps
    if len(steps) < 2 or steps[-1] - steps[0] != len(steps) - 1:
        return program
    table = program.operations.with_row_index("row")
    ends = table.group_by("step").agg(pl.col("end_ns").max()).sort("step")["end_ns"]
    if not ends.is_sorted():
        return program
    waits = np.zeros(len(table), dtype=bool)
    waits[program.after] = True
    heads = table.filter(~pl.Series(waits))
    main = _last(table, (pl.col("lane") == "main") & pl.col("instance").is_null())
    joined = _last(table, pl.col("lane").str.starts_with("collectives"))
    heads = pl.concat(heads.join(last, on=["rank", "step"], how="inner") for last in (main, joined))
    # A collective that goes on into the next step holds nothing up there.
    own = pl.col("before_lane") == "main"
    heads = heads.filter(own | (pl.col("before_end_ns") <= pl.col("start_ns")))
    return replace(
        program,
        before=np.concatenate((program.before, heads["before"].to_numpy().astype(np.int64))),
        after=np.concatenate((program.after, heads["row"].to_numpy().astype(np.int64))),
        continued=True,
    )


def _last(table: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """By rank and the step after: the row, lane and end of the last of these operations."""
    ends = {"before": "row", "before_lane": "lane", "before_end_ns": "end_ns"}
    return (
        table.filter(which)
        .group_by("rank", pl.col("step") + 1)
        .agg(pl.col(name).sort_by("end_ns").last().alias(to) for to, name in ends.items())
    )
