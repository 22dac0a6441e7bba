"""The matrix products that a rank really ran, and their exact FLOPs, from recorded shapes.

Operators nest (`aten::linear` holds `aten::addmm`, a dispatch mode shows each twice), so only the
outermost operator whose products are known is counted: each product once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import polars as pl

from steptally.measure.phases import add_phases, tells_phase
from steptally.measure.product import Product
from steptally.measure.products import (
    hides_products,
    is_product,
    looks_like_product,
    products_of,
)
from steptally.tally import GemmRow
from steptally.trace.dtypes import ELEMENT_BYTES, dtype_name
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
    operators = (
        trace.events.with_row_index("event")
        .filter(pl.col("kind") == "operator")
        .join(trace.operators, on="event", how="left", maintain_order="left")
    )
    names = operators["name"].unique()
    wanted = names.filter(pl.Series([looks_like_product(name) for name in names], dtype=pl.Boolean))
    hiding = names.filter(pl.Series([hides_products(name) for name in names], dtype=pl.Boolean))
    is_candidate = pl.col("name").is_in(wanted.implode())
    telling = operators.filter(is_candidate | tells_phase())
    candidates = add_phases(operators.filter(is_candidate), telling).drop_nulls("step")
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
            element_bytes = _element_bytes(types)
            readable[event] = [_row(name, phase, p, element_bytes, rank) for p in products]
    counted = {event for event in readable if readable.keys().isdisjoint(_outer(event, around))}
    holding = {outer for event in counted for outer in _outer(event, around)}
    uncounted = Counter(hidden["name"].to_list())
    for event, name in candidates.select("event", "name").iter_rows():
        inside = not counted.isdisjoint(_outer(event, around))
        if not (event in counted or event in holding or inside):
            uncounted[name] += 1
    calls = Counter(row for event in counted for row in readable[event])
    return StepGemms(rank=rank, step=step, rows=_by_flops(calls), uncounted=uncounted)


def _outer(event: int, around: dict[int, int | None]) -> Iterator[int]:
    """The candidates around one, from the nearest outwards."""
    outer = around[event]
    while outer is not None:
        yield outer
        outer = around[outer]


def _row(name: str, phase: str, product: Product, element_bytes: int | None, rank: int) -> GemmRow:
    return GemmRow(
        name=name.removeprefix("aten::").removesuffix("_"),
        phase=phase,
        m=product.m,
        n=product.n,
        k=product.k,
        batch=product.batch,
        calls=1,
        flops=product.flops,
        bytes=None if element_bytes is None else product.elements * element_bytes,
        rank=rank,
    )


def _by_flops(calls: Counter[GemmRow]) -> list[GemmRow]:
    """Rows of one call each, counted, to rows of all their calls."""
    rows = [replace(row, calls=count, flops=row.flops * count) for row, count in calls.items()]
    return sorted(rows, key=lambda row: (-row.flops, row.name, row.phase, row.m, row.n, row.k))


def _element_bytes(types: str | None) -> int | None:
    """Bytes of one element of the operands; None where the profiler did not record their dtype."""
    spelled = msgspec.json.decode(types) if types else []
    names = [dtype_name(text) for text in spelled if isinstance(text, str)]
    return next((ELEMENT_BYTES[name] for name in names if name), None)
