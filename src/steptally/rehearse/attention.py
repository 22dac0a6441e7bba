"""A core attention with the products of a fused kernel, which keeps nothing of the square.

It stands for Transformer Engine's flash or cuDNN attention: QKᵀ and PV forward on the visible
pairs; in backward QKᵀ again, then dP, dV, dQ and dK. With context parallelism it exchanges what
Transformer Engine does (`rehearse.context_parallel`).
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.utils import is_layer_window_attention

from steptally.job import Architecture
from steptally.rehearse.context_parallel import (
    ContextParallel,
    Tile,
    backward_tiles,
    forward_tiles,
)
from steptally.rehearse.visible import Visible


def fused_attention(architecture: Architecture) -> type[torch.nn.Module]:
    """A class to stand where a layer's specification names its core attention."""

    class FusedAttention(torch.nn.Module):
        """Q [sq, b, heads, k], K [sk, b, groups, k], V [sk, b, groups, v] to [sq, b, heads · v]."""

        def __init__(
            self,
            config: Any,
            layer_number: int,
            *_: Any,
            cp_comm_type: str | None = None,
            pg_collection: Any = None,
            **__: Any,
        ) -> None:
            super().__init__()
            self.cp = ContextParallel(
                group=None if pg_collection is None else pg_collection.cp,
                comm_type=cp_comm_type or "p2p",
                visible=visible_in_layer(architecture, layer_number),
            )
            self.softmax_offset: torch.nn.Parameter | None = None
            if config.softmax_type == "learnable":
                heads = config.num_attention_heads // config.tensor_model_parallel_size
                self.softmax_offset = torch.nn.Parameter(
                    torch.empty(heads, dtype=config.params_dtype)
                )

        def forward(
            self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
        ) -> torch.Tensor:
            context: torch.Tensor = _Attention.apply(
                query, key, value, self.softmax_offset, self.cp
            )
            return context

    return FusedAttention


def visible_in_layer(architecture: Architecture, layer_number: int) -> Visible:
    """Which keys the queries of a layer see; `layer_number` counts from 1, as Megatron's does."""
    local = architecture.window_size or architecture.attention_chunk_size
    frequency = architecture.window_attn_skip_freq
    pattern = list(frequency) if isinstance(frequency, tuple) else frequency
    if not local or not is_layer_window_attention((local, 0), pattern, layer_number):
        return Visible()
    return Visible(window=architecture.window_size, block=architecture.attention_chunk_size)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offset: torch.Tensor | None,
        cp: ContextParallel,
    ) -> torch.Tensor:
        context.cp = cp
        for tile in forward_tiles(cp, query, key, value):
            _multiply(query, value, tile, FORWARD)
        length, batch, heads, _ = query.shape
        output = query.new_empty(length, batch, heads * value.shape[-1])
        statistics = query.new_empty(batch, heads, length, dtype=torch.float32)
        context.save_for_backward(query, key, value, offset, output, statistics)
        return output

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, offset, _, _ = context.saved_tensors
        for tile in backward_tiles(context.cp, query, key, value):
            _multiply(query, value, tile, BACKWARD)
        inputs = (query, key, value, offset)
        gradients = [None if tensor is None else torch.empty_like(tensor) for tensor in inputs]
        return (*gradients, None)


# Each product as m × n × k of queries, keys, and channels of Q and K (score) or of V (value).
FORWARD = (
    ("queries", "keys", "score"),  # S = QKᵀ
    ("queries", "value", "keys"),  # O = PV
)
BACKWARD = (
    ("queries", "keys", "score"),  # S = QKᵀ again
    ("queries", "keys", "value"),  # dP = dO · Vᵀ
    ("keys", "value", "queries"),  # dV = Pᵀ · dO
    ("queries", "score", "keys"),  # dQ = dS · K
    ("score", "keys", "queries"),  # dK = Qᵀ · dS
)


def _multiply(
    query: torch.Tensor, value: torch.Tensor, tile: Tile, products: tuple[tuple[str, ...], ...]
) -> None:
    """Products over the visible pairs of a tile: 2 · pairs · channels FLOPs a head each."""
    sizes = {
        "queries": tile.queries,
        "keys": tile.keys,
        "score": query.shape[-1],
        "value": value.shape[-1],
    }
    batch = query.shape[1] * tile.heads
    for shape in products:
        channels = sizes["value" if "value" in shape else "score"]
        m, n, k = (sizes[side] for side in shape)
        torch.ops.steptally.product(query, m, n, k, batch, 2 * tile.pairs * channels * batch)
