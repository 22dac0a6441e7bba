"""The operations of one layer, whatever its kind, with selective recomputation applied."""

from __future__ import annotations

from steptally.predict.layers import LayerKind
from steptally.predict.memory.attention import attention_operations
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.experts import expert_operations
from steptally.predict.memory.latent_attention import latent_attention_operations
from steptally.predict.memory.mamba import mamba_operations
from steptally.predict.memory.mlp import mlp_operations
from steptally.predict.memory.operation import Operation
from steptally.predict.memory.recompute import selectively_recomputed

MIXERS = {
    "attention": attention_operations,
    "mla": latent_attention_operations,
    "mamba": mamba_operations,
}
MLPS = {"dense": mlp_operations, "moe": expert_operations}


def layer_operations(dimensions: Dimensions, kind: LayerKind) -> list[Operation]:
    """Every operation of one layer in forward order; the residual stream enters and leaves."""
    operations: list[Operation] = []
    if kind.mixer in MIXERS:
        operations += MIXERS[kind.mixer](dimensions)
    if kind.mlp in MLPS:
        operations += MLPS[kind.mlp](dimensions)
    return selectively_recomputed(dimensions, kind, operations)
