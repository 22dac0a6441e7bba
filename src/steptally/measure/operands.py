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

# Their output has the shape of their broadcast inputs; a reduction's has not.
KEEP_SHAPE = ("elementwise", "norm", "copy")
# In-place operators that do not read the tensor that they write, their first argument.
_ONLY_WRITE = ("aten::copy_", "aten::fill_", "aten::zero_")

_CALL = ("operator_name", "dimensions", "types")
_SIZES: dict[str, pl.DataType] = {
    "out_elements": pl.Int64(),
    "out_bytes": pl.Int64(),
    "in_elements": pl.List(pl.Int64),
    "moved_bytes": pl.Int64(),
}
_LARGEST = 2**53


def operand_sizes(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """What each kernel's operator reads and writes; null where no shapes tell.

    Columns: `operator`, a number of the operator, of which several kernels can be; `out_elements`
    and `out_bytes` of its output, the inputs' broadcast, as of elementwise operators, norms and
    copies; `in_elements`, a list of its inputs' elements; `moved_bytes`, read and written, of a
    kernel that is its operator's only one and whose family keeps shapes (column `family`).
    """
    shaped = trace.operators.drop_nulls("dimensions")
    if shaped.is_empty():
        return pl.DataFrame(schema={"operator": pl.UInt32(), **_SIZES}).clear(len(kernels))
    operators = (
        trace.events.select("thread", "start_ns", "end_ns", "kind", operator_name="name")[
            shaped["event"]
        ]
        .hstack(shaped.select("dimensions", "types"))
        .filter(pl.col("kind") == "operator")
        .drop("kind")
        .with_row_index("operator")
    )
    linked = launching_operators(kernels, operators).select("row", "family", "operator", *_CALL)
    distinct = linked.select(_CALL).unique()
    read = [_sizes(*call) for call in distinct.iter_rows()]
    told = distinct.hstack(pl.DataFrame(read, schema=_SIZES, orient="row"))
    only = (pl.len().over("operator") == 1) & pl.col("family").is_in(KEEP_SHAPE)
    sizes = (
        linked.join(told, on=_CALL, how="inner", nulls_equal=True)
        .with_columns(moved_bytes=pl.when(only).then("moved_bytes"))
        .drop("family", *_CALL)
    )
    rows = pl.DataFrame({"row": pl.arange(len(kernels), eager=True, dtype=pl.UInt32)})
    return rows.join(sizes, on="row", how="left", maintain_order="left").drop("row")


def _sizes(
    name: str, dimensions: str, types: str | None
) -> tuple[int | None, int | None, Sequence[int] | None, int | None]:
    try:
        shapes = msgspec.json.decode(dimensions, type=list[list[int]])
    except (msgspec.DecodeError, msgspec.ValidationError):  # lists of tensors: untold
        return None, None, None, None
    tensors = [shape for shape in shapes if shape]
    output = _broadcast(tensors)
    inputs = [math.prod(shape) for shape in tensors]
    if output is None or not 0 < math.prod(output) < _LARGEST or max(inputs) > _LARGEST:
        return None, None, None, None
    elements = math.prod(output)
    dtype = operand_dtype(types)
    if not dtype:
        return elements, None, inputs, None
    size = ELEMENT_BYTES[dtype]
    moved = elements + sum(inputs[1:] if name in _ONLY_WRITE else inputs)
    return elements, elements * size, inputs, moved * size


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
