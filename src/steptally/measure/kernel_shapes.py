"""FLOPs and bytes of kernels, from the shapes of the operators that launched them.

A kernel's launch lies inside its operator on the same host thread; the innermost operator whose
products are known (`products.is_product`) is the one. Nothing here needs the profiler's
"External id", which some versions of torch fill with the correlation (kineto#782).
"""

from __future__ import annotations

import polars as pl

from steptally.measure.operand_dtype import operand_dtype
from steptally.measure.products import is_product, products_of
from steptally.trace.dtypes import ELEMENT_BYTES
from steptally.trace.schema import Trace

# Kernels that multiply: an operator's others (reductions of split-K, transposes) do not.
MULTIPLYING = ("gemm", "attention")
_SHAPES = {"flops": pl.Int64, "bytes": pl.Int64, "dtype": pl.String}
_COLUMNS = {**_SHAPES, "operator_flops": pl.Int64}
# Beyond what int64 holds no single operator's products are real.
_MOST_FLOPS = 2**62


def kernel_shapes(trace: Trace, work: pl.DataFrame, families: pl.Series) -> pl.DataFrame:
    """`flops`, `bytes`, `dtype` of each row of `work`, and its operator's flops; null where untold.

    `families` has the family of each row. Where several kernels of an operator may multiply, its
    products are divided among them in proportion to their durations, so that each has the
    operator's rate.
    """
    operators = _products(trace)
    if operators.is_empty():
        return pl.DataFrame(schema=_COLUMNS).clear(len(work))
    linked = launching_operators(work.with_columns(family=families), operators)
    multiplying = linked.filter(pl.col("family").is_in(MULTIPLYING))
    # A library's own names tell nothing: an operator without a known kernel has it among others.
    nameless = linked.filter(pl.col("family") == "other").join(
        multiplying, on="operator", how="anti"
    )
    whole_ns, kernels = pl.col("duration_ns").sum().over("operator"), pl.len().over("operator")
    part = pl.when(whole_ns > 0).then(pl.col("duration_ns") / whole_ns).otherwise(1 / kernels)
    alone = kernels == 1
    divided = pl.concat((multiplying, nameless)).select(
        "row",
        *(
            pl.when(alone)
            .then(name)
            .otherwise((part * pl.col(name)).floor().cast(pl.Int64))
            .alias(name)
            for name in ("flops", "bytes")
        ),
        "dtype",
        operator_flops="flops",
    )
    rows = pl.DataFrame({"row": pl.arange(len(work), eager=True, dtype=pl.UInt32)})
    return rows.join(divided, on="row", how="left", maintain_order="left").drop("row")


def launching_operators(work: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """The kernels of `work` that one of `operators` launched, with its columns.

    `row` is the place in `work`, `duration_ns` the kernel's. Of operators (thread, start_ns,
    end_ns, …) around a launch the one that began last is taken; a kernel after it ended has none.
    """
    launched = (work["kind"] == "compute") & work["launch_start_ns"].is_not_null()
    return (
        work.select(
            "family",
            "thread",
            "launch_start_ns",
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
        .with_row_index("row")
        .filter(launched)
        .sort("launch_start_ns")
        .join_asof(
            operators.sort("start_ns"),
            left_on="launch_start_ns",
            right_on="start_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("launch_start_ns") < pl.col("end_ns"))
    )


def _products(trace: Trace) -> pl.DataFrame:
    """The operators whose products are known: operator, thread, start_ns, end_ns, flops, …"""
    shaped = trace.operators.drop_nulls("dimensions")
    operators = trace.events.select("thread", "start_ns", "end_ns", "name", "kind")[
        shaped["event"]
    ].hstack(shaped.select("dimensions", "types", "values"))
    names = operators["name"].unique()
    known = [name for name in names if is_product(name)]
    operators = operators.filter((pl.col("kind") == "operator") & pl.col("name").is_in(known))
    # Layers repeat: each distinct call is read once.
    key = ("name", "dimensions", "types", "values")
    distinct = operators.select(key).unique()
    read = [_work_of(*call) for call in distinct.iter_rows()]
    told = distinct.hstack(pl.DataFrame(read, schema=_SHAPES, orient="row")).drop_nulls("flops")
    return (
        operators.join(told, on=key, how="inner", nulls_equal=True)
        .select("thread", "start_ns", "end_ns", "flops", "bytes", "dtype")
        .with_row_index("operator")
    )


def _work_of(
    name: str, dimensions: str, types: str | None, values: str | None
) -> tuple[int | None, int | None, str | None]:
    """FLOPs, bytes (each operand and result once) and dtype of one call."""
    products = products_of(name, dimensions, values)
    flops = sum(product.flops for product in products or ())
    if not products or not 0 < flops < _MOST_FLOPS:
        return None, None, None
    dtype = operand_dtype(types)
    elements = sum(product.elements for product in products)
    return flops, elements * ELEMENT_BYTES[dtype] if dtype else None, dtype or None
