"""Sizes of what a memory-bound kernel reads and writes, from the shapes of its operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import polars as pl

from steptally.measure.kernel_shapes import launching_operators
from steptally.measure.operand_dtype import operand_dtype
from steptally.trace.dtypes import ELEMENT_BYTES
from steptally.trace.schema import Trace

_NAMES = ("dimensions", "types")
_SIZES: dict[str, pl.DataType] = {
    "out_elements": pl.Int64(),
    "out_bytes": pl.Int64(),
    "in_elements": pl.List(pl.Int64),
}
_LARGEST = 2**53


def operand_sizes(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """`operator`, `out_elements`, `out_bytes` and `in_elements` of each row; null where untold.

    `operator` numbers the operators; several kernels can be of one. The output is the inputs'
    broadcast, as of elementwise operators, norms and copies.
    """
    shaped = trace.operators.drop_nulls("dimensions")
    operators = (
        trace.events.select("thread", "start_ns", "end_ns", "kind")[shaped["event"]]
        .hstack(shaped.select(_NAMES))
        .filter(pl.col("kind") == "operator")
        .drop("kind")
        .with_row_index("operator")
    )
    linked = launching_operators(kernels, operators).select("row", "operator", *_NAMES)
    distinct = linked.select(_NAMES).unique()
    read = [_sizes(*shapes) for shapes in distinct.iter_rows()]
    told = distinct.hstack(pl.DataFrame(read, schema=_SIZES, orient="row"))
    sizes = linked.join(told, on=_NAMES, how="inner", nulls_equal=True).drop(_NAMES)
    rows = pl.DataFrame({"row": pl.arange(len(kernels), eager=True, dtype=pl.UInt32)})
    return rows.join(sizes, on="row", how="left", maintain_order="left").drop("row")


def _sizes(
    dimensions: str, types: str | None
) -> tuple[int | None, int | None, Sequence[int] | None]:
    try:
        shapes = msgspec.json.decode(dimensions, type=list[list[int]])
    except (msgspec.DecodeError, msgspec.ValidationError):  # lists of tensors: untold
        return None, None, None
    tensors = [shape for shape in shapes if shape]
    output = _broadcast(tensors)
    if output is None:
        return None, None, None
    elements = math.prod(output)
    dtype = operand_dtype(types)
    inputs = [math.prod(shape) for shape in tensors]
    if not 0 < elements < _LARGEST or max(inputs) > _LARGEST:
        return None, None, None
    return elements, elements * ELEMENT_BYTES[dtype] if dtype else None, inputs


def _broadcast(shapes: Sequence[list[int]]) -> list[int] | None:
    """The shape that operands broadcast to; None where they do not.

    >>> _broadcast([[4, 1], [3]])
    [4, 3]
    """
    if not shapes:
        return None
    length = max(map(len, shapes))
    padded = [[1] * (length - len(shape)) + list(shape) for shape in shapes]
    output = [max(sizes) for sizes in zip(*padded, strict=True)]
    fits = all(
        size in (1, whole) for shape in padded for size, whole in zip(shape, output, strict=True)
    )
    return output if fits else None
