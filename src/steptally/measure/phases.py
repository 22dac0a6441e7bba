"""In which phase a recorded operator ran: forward, backward, or forward again (recompute).

Autograd's engine shows each backward node as an operator `autograd::engine::evaluate_function: …`
around what it runs, so an operator inside one is backward, and one inside none is forward.
Inside, two things are recomputation: what a checkpoint's own node runs directly
(`CheckpointFunctionBackward`: torch.utils.checkpoint, Megatron's `tensor_parallel.checkpoint`),
and what runs with gradients on (hooks that recompute: Megatron's `CheckpointWithoutOutput`,
torch's non-reentrant checkpoint), as a backward pass itself never does.

PyTorch gives an aten operator a sequence number only with gradients on, a custom autograd function
always: the backward of a custom function may call one (Megatron's `_AllToAll` calls itself). Inside
such a node a function counts as recomputed only if the node that it made is seen to run. Nodes of
PyTorch's own (`MulBackward0`, with a number) call no functions, so there it is a hook's doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
# In the hooks of a parameter whose gradient is complete: where data parallelism reduces it.
GRADIENTS = "gradients"
_NODE = "autograd::engine::evaluate_function: "
_OWN_NODE = re.compile(r"Backward\d+$")


def tells_phase() -> pl.Expr:
    """Selects the operators that tell in which phase those inside them run."""
    return pl.col("name").str.starts_with(_NODE) | pl.col("sequence").is_not_null()


def add_phases(rows: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """`rows` with the columns `phase`, `inside` and `enclosing`.

    `inside` tells whether any operator is around the row, `enclosing` is the nearest of `rows`
    around it, or null. Both frames have the columns event, thread, start_ns, end_ns, name, sequence
    and forward_thread; `operators` hold everything that can be around.
    """
    ordered = operators.sort("thread", "start_ns", pl.col("end_ns").neg(), "event")
    found = list(_walk(ordered, set(rows["event"])))
    columns = {"event": pl.UInt32, "phase": pl.String, "inside": pl.Boolean, "enclosing": pl.UInt32}
    placed = pl.DataFrame(found, schema=columns, orient="row")
    return rows.join(placed, on="event", how="left", maintain_order="left")


class _Open(NamedTuple):
    """An operator that has not ended: what holds inside it."""

    end_ns: int
    phase: str
    in_own_node: bool
    wanted: int | None  # the nearest wanted operator, itself included


def _walk(ordered: pl.DataFrame, wanted: set[int]) -> Iterator[tuple[int, str, bool, int | None]]:
    """Each wanted operator with its phase and what is around it, thread by thread.

    Operators of one thread nest; a stack holds those still open.
    """
    nodes = _nodes_that_ran(ordered)
    outside = _Open(0, FORWARD, False, None)
    still_open: list[_Open] = []
    current_thread = None
    for event, thread, start, end, name, sequence, forward_thread in ordered.select(
        "event", "thread", "start_ns", "end_ns", "name", "sequence", "forward_thread"
    ).iter_rows():
        if thread != current_thread:
            current_thread = thread
            still_open.clear()
        while still_open and still_open[-1].end_ns <= start:
            still_open.pop()
        _, phase, in_own_node, enclosing = still_open[-1] if still_open else outside
        if name.startswith(_NODE):
            phase, in_own_node = _phase_in_node(name), _OWN_NODE.search(name) is not None
        elif phase == BACKWARD and sequence is not None and forward_thread == 0:
            made = (f"{name}Backward", sequence)
            if name.startswith("aten::") or in_own_node or made in nodes:
                phase = RECOMPUTE
        if event in wanted:
            yield event, phase, bool(still_open), enclosing
            enclosing = event
        still_open.append(_Open(end, phase, in_own_node, enclosing))


def _nodes_that_ran(operators: pl.DataFrame) -> set[tuple[str, int]]:
    """The backward nodes, by name and the number that they got when they were made."""
    nodes = operators.filter(pl.col("name").str.starts_with(_NODE)).drop_nulls("sequence")
    return set(nodes.select(pl.col("name").str.strip_prefix(_NODE), "sequence").iter_rows())


def _phase_in_node(name: str) -> str:
    if "Checkpoint" in name:
        return RECOMPUTE
    return GRADIENTS if name.endswith("AccumulateGrad") else BACKWARD
