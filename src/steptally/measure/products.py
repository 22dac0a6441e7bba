"""The matrix products inside one recorded operator, from its name and its arguments' shapes.

Argument positions follow the operators' schemas in torch's native_functions.yaml.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from steptally.measure import convolutions, fused_attention
from steptally.measure.product import Product, product

_Shapes = Sequence[list[int]]
_Values = Sequence[str]

# Words in the names of operators that multiply matrices, or may.
_PRODUCT_WORDS = frozenset(
    [
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "matmul",
        "gemm",
        "linear",
        "bilinear",
        "einsum",
        "attention",
        "conv",
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "lstm",
        "gru",
        "rnn",
    ]
)
# Transformer Engine's and FlashAttention's functions call their libraries from Python: the
# profiler sees the function and no operator inside. Templates are torch.compile's own products.
_HIDING = re.compile(
    r"_(Linear|LayerNormLinear|LayerNormMLP|GroupedLinear)(Backward)?$"
    r"|\w*(FlashAttn|FusedAttn|AttnFuncWithCP)\w*$|flash_attn\S*$|triton_tem_"
)


def is_product(name: str) -> bool:
    """Whether this operator's products can be counted from its shapes."""
    return _plain(name) in _COUNTED


def looks_like_product(name: str) -> bool:
    """Whether an operator's name tells of matrix products, whether counted here or not."""
    return name.startswith("aten::") and not _PRODUCT_WORDS.isdisjoint(_plain(name).split("_"))


def hides_products(name: str) -> bool:
    """Whether an operator runs products that no recorded operator shows."""
    return _HIDING.match(name) is not None


def products_of(name: str, dimensions: str | None, values: str | None) -> list[Product] | None:
    """The products of an operator that `is_product`; None where its shapes do not make any.

    `dimensions` and `values` are the profiler's "Input Dims" and "Concrete Inputs".

    >>> [product.flops for product in products_of("aten::mm", "[[4, 8], [8, 16]]", None)]
    [1024]
    """
    try:
        shapes = msgspec.json.decode(dimensions or "")
        texts = msgspec.json.decode(values) if values else []
        return _COUNTED[_plain(name)](shapes, texts)
    except (msgspec.DecodeError, LookupError, SyntaxError, TypeError, ValueError):
        return None


def _matrices(shapes: _Shapes, _: _Values, *, first: int) -> list[Product]:
    """Two matrices, or two batches of them, from argument `first` on."""
    *batch, m, k = shapes[first]
    *_rest, inner, n = shapes[first + 1]
    if inner != k:
        raise ValueError(f"{k} columns meet {inner} rows")
    return [product(m, n, k, math.prod(batch))]


def _matrix_and_vector(shapes: _Shapes, _: _Values, *, first: int) -> list[Product]:
    m, k = shapes[first]
    return [product(m, 1, k)]


def _vectors(shapes: _Shapes, _: _Values) -> list[Product]:
    (k,) = shapes[0]
    return [product(1, 1, k)]


def _grouped(shapes: _Shapes, values: _Values) -> list[Product]:
    """Products of several groups at once; a matrix side by side with a batch is split into groups.

    Counts every row, also those behind the last group's end, which the shapes do not show.
    """
    left, right = shapes[0], shapes[1]
    if len(left) == 3 and len(right) == 3:
        return _matrices(shapes, values, first=0)
    # [rows of all groups, k] · [group, k, n], or the mirror image, or k split into groups.
    return [product(left[-2], right[-1], left[-1])]


def _plain(name: str) -> str:
    """The operator without namespace and the underscore of in-place operators."""
    return name.removeprefix("aten::").removesuffix("_")


_COUNTED: dict[str, Callable[[_Shapes, _Values], list[Product]]] = {
    **{name: partial(_matrices, first=0) for name in ("mm", "bmm", "_int_mm")},
    **{name: partial(_matrices, first=0) for name in ("_scaled_mm", "_scaled_mm_v2")},
    **{name: partial(_matrices, first=1) for name in ("addmm", "_addmm_activation")},
    **{name: partial(_matrices, first=1) for name in ("baddbmm", "addbmm")},
    "mv": partial(_matrix_and_vector, first=0),
    "addmv": partial(_matrix_and_vector, first=1),
    **dict.fromkeys(("dot", "vdot"), _vectors),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _grouped),
    "convolution": convolutions.convolution,
    "convolution_backward": convolutions.convolution_backward,
    **{name: partial(fused_attention.fused_attention, name) for name in fused_attention.OPERATORS},
}
