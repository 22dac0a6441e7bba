"""Activations of multi-latent attention (MLA), by operation.

Source: `MLASelfAttention` of megatron-core 0.16.1. Under Transformer Engine the down projections
are whole on every rank (`parallel_mode="duplicated"`) and work on the rank's own tokens.
"""

from __future__ import annotations

from steptally.job import Architecture
from steptally.predict.count import Count
from steptally.predict.memory.attention import bias_dropout_add
from steptally.predict.memory.core_attention import (
    AttentionTensors,
    flash_attention,
    unfused_attention,
)
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import (
    Operation,
    column_linear,
    held,
    norm,
    row_linear,
    weight_gradient,
)


def latent_attention_operations(dimensions: Dimensions) -> list[Operation]:
    """Norm, down and up projections, rotary embedding, core attention, projection, residual add."""
    architecture = dimensions.architecture
    hidden = architecture.hidden_size
    value_width = dimensions.heads * architecture.v_head_dim
    branch = [
        norm(dimensions, "input_layernorm", dimensions.own_tokens, hidden),
        *_queries(dimensions),
        *_keys_and_values(dimensions),
        _rotary(dimensions),
        *_core_attention(dimensions),
        row_linear(dimensions, "self_attention.linear_proj", value_width, hidden),
    ]
    return [
        *held(branch, dimensions.hidden_bytes),
        bias_dropout_add(dimensions, "self_attn_bda"),
    ]


def down_projection(
    dimensions: Dimensions, name: str, outputs: int, *, saves_input: bool
) -> Operation:
    """[own_tokens, hidden] → [own_tokens, outputs], whole on every rank."""
    hidden, element = dimensions.architecture.hidden_size, dimensions.element
    inputs = dimensions.own_tokens * hidden
    output = dimensions.own_tokens * outputs * element
    return Operation(
        name,
        dimensions.linear_input_bytes(inputs) if saves_input else 0,
        output,
        output + inputs * element + weight_gradient(dimensions, hidden, outputs),
    )


def _queries(dimensions: Dimensions) -> list[Operation]:
    architecture = dimensions.architecture
    width = dimensions.heads * (architecture.qk_head_dim + architecture.qk_pos_emb_head_dim)
    rank = architecture.q_lora_rank
    if rank is None:
        return [
            column_linear(
                dimensions, "self_attention.linear_q_proj", architecture.hidden_size, width
            )
        ]
    return [
        down_projection(dimensions, "self_attention.linear_q_down_proj", rank, saves_input=True),
        *_latent_norm(dimensions, "self_attention.q_layernorm", rank),
        column_linear(dimensions, "self_attention.linear_q_up_proj", rank, width),
    ]


def _keys_and_values(dimensions: Dimensions) -> list[Operation]:
    """The shared input was kept by the query's projection; the rotated part stays a view."""
    architecture = dimensions.architecture
    rank, rotated = architecture.kv_lora_rank, architecture.qk_pos_emb_head_dim
    width = dimensions.heads * (architecture.qk_head_dim + architecture.v_head_dim)
    view = dimensions.own_tokens * rotated * dimensions.element
    return [
        down_projection(
            dimensions, "self_attention.linear_kv_down_proj", rank + rotated, saves_input=False
        ),
        *_latent_norm(dimensions, "self_attention.kv_layernorm", rank, view),
        column_linear(dimensions, "self_attention.linear_kv_up_proj", rank, width),
    ]


def _latent_norm(dimensions: Dimensions, name: str, rank: int, view: Count = 0) -> list[Operation]:
    """The norm of a latent, where `qk_layernorm` asks for it; `view` is kept with its input."""
    if not dimensions.architecture.qk_layernorm:
        return []
    operation = norm(dimensions, name, dimensions.own_tokens, rank)
    return [operation._replace(saved=operation.saved + view)]


def _rotary(dimensions: Dimensions) -> Operation:
    """Q and K are put together anew from a plain and a rotated part; V is made contiguous.

    Keeps cos and sin for Q and for K where the formula is not fused.
    """
    architecture, recipe = dimensions.architecture, dimensions.recipe
    tensors = _tensors(dimensions)
    saved: Count = 0
    if not (recipe.apply_rope_fusion and architecture.position_embedding_type == "yarn"):
        saved = 4 * dimensions.sequence * architecture.qk_pos_emb_head_dim * dimensions.element
    from_up = tensors.query + tensors.key // _key_width(architecture) * _up_width(architecture)
    return Operation(
        "self_attention.rotary_pos_emb",
        saved,
        from_up + tensors.kept_inputs,
        from_up + tensors.kept_inputs,
    )


def _core_attention(dimensions: Dimensions) -> list[Operation]:
    tensors = _tensors(dimensions)
    if dimensions.unfused_attention:
        return unfused_attention(dimensions, tensors)
    return flash_attention(dimensions, tensors)


def _tensors(dimensions: Dimensions) -> AttentionTensors:
    architecture = dimensions.architecture
    heads = dimensions.tokens * dimensions.heads * dimensions.element
    key = heads * _key_width(architecture)
    value = heads * architecture.v_head_dim
    return AttentionTensors(key, key, value, value, 2 * key + value, 0)


def _key_width(architecture: Architecture) -> int:
    return architecture.qk_head_dim + architecture.qk_pos_emb_head_dim


def _up_width(architecture: Architecture) -> int:
    return architecture.qk_head_dim + architecture.v_head_dim
