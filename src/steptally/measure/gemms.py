"""The matrix products that a rank really ran, and their exact FLOPs, from recorded shapes.

Operators nest (`aten::linear` holds `aten::addmm`, a dispatch mode shows each twice), so only the
outermost operator whose products are known is counted: each product once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from steptally.measure.early_stop import stopped_early
from steptally.measure.operand_dtype import operand_dtype
from steptally.measure.phases import add_phases, tells_phase
from steptally.measure.product import Product
from steptally.measure.products import (
    hides_products,
    is_product,
    looks_like_product,
    products_of,
)
from steptally.tally import GemmRow
from steptally.trace.dtypes import ELEMENT_BYTES, short_dtype
from steptally.trace.schema import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGemms:
    """The products of one rank in one step; `flops` is their exact sum.

    `uncounted` are operators that run products which their records do not show, with how often.
    """

    rank: int
    step: int
    rows: Sequence[GemmRow]
    uncounted: Counter[str]

    @property
    def flops(self) -> int:
        """Executed FLOPs, 2·m·n·k·batch of every product."""
        return sum(row.flops for row in self.rows)


def step_gemms(trace: Trace) -> list[StepGemms]:
    """One entry for each recorded step, in order.

    Works on the operators of the host: a rank with a device issues its products there too.
    """
    events = trace.events.with_row_index("event")
    operators = events.filter(pl.col("kind") == "operator").join(
        trace.operators, on="event", how="left", maintain_order="left"
    )
    names = operators["name"].unique()
    wanted = names.filter(pl.Series([looks_like_product(name) for name in names], dtype=pl.Boolean))
    hiding = names.filter(pl.Series([hides_products(name) for name in names], dtype=pl.Boolean))
    is_candidate = pl.col("name").is_in(wanted.implode())
    telling = operators.filter(is_candidate | tells_phase())
    candidates = add_phases(operators.filter(is_candidate), telling).drop_nulls("step")
    never_ran = stopped_early(candidates, events)
    candidates = candidates.filter(~pl.col("event").is_in(never_ran))
    hidden = operators.filter(pl.col("name").is_in(hiding.implode()))
    return [
        _one_step(trace.rank or 0, step, candidates.filter(step=step), hidden.filter(step=step))
        for step in trace.events.filter(pl.col("kind") == "step")["step"].unique().sort()
    ]


def _one_step(rank: int, step: int, candidates: pl.DataFrame, hidden: pl.DataFrame) -> StepGemms:
    """Count each product of a step once; name what may hold some and shows none."""
    around = dict(candidates.select("event", "enclosing").iter_rows())
    readable: dict[int, list[GemmRow]] = {}
    for event, name, phase, dimensions, types, values in candidates.select(
        "event", "name", "phase", "dimensions", "types", "values"
    ).iter_rows():
        products = products_of(name, dimensions, values) if is_product(name) else None
        if products is not None:
            dtype = operand_dtype(types)
            readable[event] = [_row(name, phase, one, dtype, rank) for one in products]
    counted = {event for event in readable if readable.keys().isdisjoint(_outer(event, around))}
    holding = {outer for event in counted for outer in _outer(event, around)}
    silent = [
        event
        for event in around
        if event not in holding
        and event not in counted
        and counted.isdisjoint(_outer(event, around))
    ]
    # Of nested ones (matmul around mm) the innermost is what the profiler should have shown.
    wrapping = {outer for event in silent for outer in _outer(event, around)}
    names = dict(candidates.select("event", "name").iter_rows())
    uncounted = Counter(hidden["name"].to_list())
    uncounted.update(names[event] for event in silent if event not in wrapping)
    calls = Counter(row for event in counted for row in readable[event])
    return StepGemms(rank=rank, step=step, rows=_by_flops(calls), uncounted=uncounted)


def _outer(event: int, around: dict[int, int | None]) -> Iterator[int]:
    """The candidates around one, from the nearest outwards."""
    outer = around[event]
    while outer is not None:
        yield outer
        outer = around[outer]


def _row(name: str, phase: str, product: Product, dtype: str, rank: int) -> GemmRow:
    """One call; `dtype` is the operands', empty where the profiler did not record it."""
    size = product.elements * ELEMENT_BYTES[dtype] if dtype else None
    return GemmRow(
        name=name.removeprefix("aten::").removesuffix("_"),
        phase=phase,
        m=product.m,
        n=product.n,
        k=product.k,
        batch=product.batch,
        calls=1,
        flops=product.flops,
        bytes=size,
        rank=rank,
        dtype=short_dtype(dtype),
        intensity=product.flops / size if size else None,
    )


def _by_flops(calls: Counter[GemmRow]) -> list[GemmRow]:
    """Rows of one call each, counted, to rows of all their calls."""
    rows = [replace(row, calls=count, flops=row.flops * count) for row, count in calls.items()]
    return sorted(rows, key=lambda row: (-row.flops, row.name, row.phase, row.m, row.n, row.k))
