"""The products inside torch's fused attention operators, which do not show them one by one.

Forward has two, QKᵀ and PV; backward five, since the scores are computed a second time. Only the
pairs that a causal mask leaves are counted, as in steptally's `flash` convention: the kernels skip
masked blocks. Schemas in torch's native_functions.yaml; all tensors are [batch, heads, sequence,
head size].
"""

from __future__ import annotations

from collections.abc import Sequence

from steptally.measure.product import Product

# Where each operator says whether it is causal.
_CAUSAL_FORWARD = {
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
}
_CAUSAL_BACKWARD = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
}
OPERATORS = (*_CAUSAL_FORWARD, *_CAUSAL_BACKWARD)


def fused_attention(name: str, shapes: Sequence[list[int]], values: Sequence[str]) -> list[Product]:
    """The products of one call of an operator of `OPERATORS`."""
    if name in _CAUSAL_FORWARD:
        query, key, value = shapes[0], shapes[1], shapes[2]
        causal = values[_CAUSAL_FORWARD[name]] == "True"
        return _products(query, key, value, causal, with_key_size=1, with_value_size=1)
    query, key, value = shapes[1], shapes[2], shapes[3]
    causal = values[_CAUSAL_BACKWARD[name]] == "True"
    # QKᵀ again, dQ and dK have the key's head size; dP and dV the value's.
    return _products(query, key, value, causal, with_key_size=3, with_value_size=2)


def _products(
    query: list[int],
    key: list[int],
    value: list[int],
    causal: bool,
    *,
    with_key_size: int,
    with_value_size: int,
) -> list[Product]:
    batch, heads, queries, key_size = query
    keys, value_size = key[2], value[3]
    pairs = _causal_pairs(queries, keys) if causal else queries * keys
    return [
        Product(
            m=queries,
            n=keys,
            k=size,
            batch=batch * heads,
            flops=2 * pairs * size * batch * heads,
        )
        for size in [key_size] * with_key_size + [value_size] * with_value_size
    ]


def _causal_pairs(queries: int, keys: int) -> int:
    """Query i sees keys 0 to i: the mask is aligned at the first of both."""
    square = min(queries, keys)
    return square * (square + 1) // 2 + max(0, queries - keys) * keys
