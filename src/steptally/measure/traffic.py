"""What each rank sent: calls and bytes by process group, collective, phase and size."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from steptally.measure.phases import FORWARD, add_phases
from steptally.tally import TrafficRow
from steptally.trace.dtypes import ELEMENT_BYTES, dtype_name, short_dtype
from steptally.trace.schema import UNATTRIBUTED, Trace

# A collective that Python code issues by itself: of pipelines, of the optimizer, of logging.
OUTSIDE = "outside autograd"
UNKNOWN = "unknown"

# c10d's names of operators, and NCCL's of the same in its kernels' arguments.
_COLLECTIVES = {
    "all_reduce": ("allreduce", "allreduce_coalesced"),
    "all_gather": (
        *("allgather", "_allgather_base", "all_gather", "all_gather_into_tensor"),
        *("allgather_coalesced", "allgather_into_tensor_coalesced"),
    ),
    "reduce_scatter": (
        *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor"),
        "reduce_scatter_tensor_coalesced",
    ),
    "all_to_all": ("alltoall", "alltoall_base", "all_to_all", "all_to_allv", "alltoallv"),
    "recv": ("recv", "recv_any_source"),
}
_SPELLED = {spelling: name for name, spellings in _COLLECTIVES.items() for spelling in spellings}


def step_traffic(
    trace: Trace, hosts: Mapping[int, str] | None = None
) -> dict[int, list[TrafficRow]]:
    """The collectives that a rank issued in each recorded step, equal ones counted together.

    `hosts` by rank tell which groups lie within one node. Rests on the recorder's tags; without
    them on the arguments of NCCL's kernels, where one kernel can hold several messages.
    """
    events = trace.events.with_row_index("event").join(
        trace.operators, on="event", how="left", maintain_order="left"
    )
    tags = events.filter(pl.col("kind") == "collective")
    source = tags if not tags.is_empty() else events.filter(pl.col("kind") == "communication")
    around = events.filter(pl.col("kind").is_in(("operator", "collective")))
    placed = add_phases(source, around).drop_nulls(("step", "collective"))
    calls: dict[int, Counter[TrafficRow]] = {step: Counter() for step in placed["step"].unique()}
    for step, number, group, phase, inside in placed.select(
        "step", "collective", "group", "phase", "inside"
    ).iter_rows():
        if phase == FORWARD and not inside:
            phase = OUTSIDE
        collective = trace.collectives.row(number, named=True)
        calls[step][_call(collective, group, phase or UNKNOWN, trace.rank, hosts or {})] += 1
    return {step: _counted(rows) for step, rows in calls.items()}


def _call(
    collective: Mapping[str, Any],
    group: str | None,
    phase: str,
    rank: int | None,
    hosts: Mapping[int, str],
) -> TrafficRow:
    """One collective as a row of one call."""
    return TrafficRow(
        group=group or UNATTRIBUTED,
        group_size=collective["group_size"] or 0,
        collective=collective_name(collective["collective"] or "unknown"),
        phase=phase,
        calls_per_step=1,
        bytes_per_call=_full_bytes(collective),
        dtype=short_dtype(dtype_name(collective["dtype"] or "")),
        rank=rank,
        scope=_scope(collective["group_ranks"], hosts),
    )


def _counted(calls: Counter[TrafficRow]) -> list[TrafficRow]:
    rows = [
        replace(row, calls_per_step=count, bytes_per_step=count * row.bytes_per_call)
        for row, count in calls.items()
    ]
    return sorted(rows, key=lambda row: (row.group, row.collective, row.phase, -row.bytes_per_call))


def collective_name(spelled: str) -> str:
    """Megatron's and torch's word for a collective, however c10d or NCCL spell it.

    >>> collective_name("_reduce_scatter_base_"), collective_name("allreduce")
    ('reduce_scatter', 'all_reduce')
    """
    plain = spelled.removesuffix("_")
    return _SPELLED.get(plain, plain)


def _full_bytes(collective: Mapping[str, Any]) -> int:
    """The size of the tensor that a collective leaves or reduces: the larger of both its ends."""
    sizes = _numbers(collective, "bytes_in", "bytes_out")
    if sizes:
        return max(sizes)
    elements = max(_numbers(collective, "elements_in", "elements_out"), default=0)
    return elements * ELEMENT_BYTES.get(dtype_name(str(collective["dtype"])), 0)


def _numbers(collective: Mapping[str, Any], *names: str) -> list[int]:
    return [value for name in names if isinstance(value := collective[name], int)]


def _scope(group_ranks: str | None, hosts: Mapping[int, str]) -> str | None:
    """Whether a group's members are on one node; None where the trace or the run do not tell."""
    try:
        ranks = json.loads(group_ranks or "")
        places = {hosts[rank] for rank in ranks}
    except (ValueError, TypeError, KeyError):  # NCCL shortens long lists: [0, 1, ..., 63]
        return None
    return "intra-node" if len(places) == 1 else "inter-node"
