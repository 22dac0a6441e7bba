"""In which phase a recorded operator ran: forward, backward, or forward again (recompute).

Autograd's engine shows each backward node as an operator `autograd::engine::evaluate_function: …`
around what it runs, so an operator inside one is backward, and one inside none is forward.
Inside, two things are recomputation: what a checkpoint's own node runs directly
(`CheckpointFunctionBackward`: torch.utils.checkpoint, Megatron's `tensor_parallel.checkpoint`),
and what runs with gradients on (hooks that recompute: Megatron's `CheckpointWithoutOutput`,
torch's non-reentrant checkpoint), as a backward pass itself never does.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
# In the hooks of a parameter whose gradient is complete: where data parallelism reduces it.
GRADIENTS = "gradients"
_NODE = "autograd::engine::evaluate_function: "


def tells_phase() -> pl.Expr:
    """Selects the operators that tell in which phase those inside them run."""
    return pl.col("name").str.starts_with(_NODE) | pl.col("forward_sequence").is_not_null()


def add_phases(rows: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """`rows` with the columns `phase`, `inside` and `enclosing`.

    `inside` tells whether any operator is around the row, `enclosing` is the nearest of `rows`
    around it, or null. Both frames have the columns event, thread, start_ns, end_ns, name and
    forward_sequence; `operators` hold everything that can be around.
    """
    wanted = set(rows["event"])
    ordered = operators.sort("thread", "start_ns", pl.col("end_ns").neg(), "event")
    found = list(_walk(ordered, wanted))
    columns = {"event": pl.UInt32, "phase": pl.String, "inside": pl.Boolean, "enclosing": pl.UInt32}
    placed = pl.DataFrame(found, schema=columns, orient="row")
    return rows.join(placed, on="event", how="left", maintain_order="left")


def _walk(ordered: pl.DataFrame, wanted: set[int]) -> Iterator[tuple[int, str, bool, int | None]]:
    """Each wanted operator with its phase and what is around it, thread by thread.

    Operators of one thread nest; a stack holds those still open.
    """
    still_open: list[tuple[int, str, int | None]] = []  # end, phase inside, nearest wanted
    current_thread = None
    for event, thread, start, end, name, sequence in ordered.select(
        "event", "thread", "start_ns", "end_ns", "name", "forward_sequence"
    ).iter_rows():
        if thread != current_thread:
            current_thread = thread
            still_open.clear()
        while still_open and still_open[-1][0] <= start:
            still_open.pop()
        _, phase, enclosing = still_open[-1] if still_open else (0, FORWARD, None)
        if name.startswith(_NODE):
            phase = _phase_in_node(name)
        elif phase == BACKWARD and sequence is not None:
            phase = RECOMPUTE
        if event in wanted:
            yield event, phase, bool(still_open), enclosing
            enclosing = event
        still_open.append((end, phase, enclosing))


def _phase_in_node(name: str) -> str:
    if "Checkpoint" in name:
        return RECOMPUTE
    return GRADIENTS if name.endswith("AccumulateGrad") else BACKWARD
