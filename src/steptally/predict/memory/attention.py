"""Activations of self-attention with query groups, by operation.

Sources: `SelfAttention` and `apply_rotary_pos_emb` of megatron-core 0.16.1; `get_qkv_layout` of
Transformer Engine 2.11, which makes Q, K and V contiguous.
"""

from __future__ import annotations

from steptally.predict.count import Count
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
)

ROTARY = ("rope", "mrope", "yarn")


def attention_operations(dimensions: Dimensions) -> list[Operation]:
    """Norm, QKV, rotary embedding, core attention, projection, dropout and residual add."""
    hidden = dimensions.architecture.hidden_size
    query_width = dimensions.heads * dimensions.architecture.kv_channels
    project = row_linear(dimensions, "self_attention.linear_proj", query_width, hidden)
    branch = [
        norm(dimensions, "input_layernorm", dimensions.own_tokens, hidden),
        column_linear(dimensions, "self_attention.linear_qkv", hidden, qkv_width(dimensions)),
        *query_key_norms(dimensions),
        rotary(dimensions),
        *core_attention(dimensions),
        *output_gate(dimensions),
        project._replace(forward=project.forward + layer_variables(dimensions)),
        *post_norm(dimensions, "post_self_attn_layernorm"),
    ]
    return [
        *held(branch, dimensions.hidden_bytes),
        bias_dropout_add(dimensions, "self_attn_bda"),
    ]


def post_norm(dimensions: Dimensions, name: str) -> list[Operation]:
    """The further norm that some models (Gemma 2, 3) have after attention and after the MLP."""
    if not dimensions.architecture.post_layer_norms:
        return []
    return [norm(dimensions, name, dimensions.own_tokens, dimensions.architecture.hidden_size)]


def qkv_width(dimensions: Dimensions) -> Count:
    """Outputs of the QKV projection on one rank: (q + 2kv) / tp, and a gate where there is one."""
    architecture = dimensions.architecture
    query = architecture.query_projection_size
    gate = query if architecture.attention_output_gate else 0
    key_value = 2 * architecture.kv_channels * architecture.num_query_groups
    return (query + gate + key_value) // dimensions.tp


def query_key_norms(dimensions: Dimensions) -> list[Operation]:
    """Norms of every head of Q and K: each keeps its input and 1/σ a head.

    Transformer Engine's input is a copy. Megatron-Core's own is a view of the QKV output and keeps
    all of it, except that Q is copied where heads share groups.
    """
    architecture = dimensions.architecture
    if not architecture.qk_layernorm:
        return []
    rows = dimensions.tokens * (dimensions.heads + dimensions.groups)
    both = norm(dimensions, "self_attention.qk_layernorm", rows, architecture.kv_channels)
    if dimensions.transformer_engine:
        return [both]
    query, key = dimensions.query_bytes, dimensions.key_bytes
    copied = query if has_groups(dimensions) else 0
    return [both._replace(saved=both.saved + copied + key)]


def rotary(dimensions: Dimensions) -> Operation:
    """Split Q, K, V and rotate Q and K: new tensors, which core attention keeps.

    The fused kernel keeps nothing; the plain formula keeps cos and sin, for Q and for K.
    """
    architecture, recipe = dimensions.architecture, dimensions.recipe
    mixed = dimensions.query_bytes + 2 * dimensions.key_bytes
    rotates = architecture.position_embedding_type in ROTARY
    saved: Count = 0
    if rotates and not (recipe.apply_rope_fusion and dimensions.transformer_engine):
        width = int(architecture.kv_channels * architecture.rotary_percent)
        saved = 4 * dimensions.sequence * width * dimensions.element
    return Operation("self_attention.rotary_pos_emb", saved, 2 * mixed, 2 * mixed)


def core_attention(dimensions: Dimensions) -> list[Operation]:
    """softmax(QKᵀ)V on this rank's heads."""
    query, key = dimensions.query_bytes, dimensions.key_bytes
    mixed = query + 2 * key
    if not dimensions.unfused_attention:
        tensors = AttentionTensors(query, key, key, query, mixed, layer_variables(dimensions))
        return flash_attention(dimensions, tensors)
    kept = unfused_kept_inputs(dimensions)
    variables = mixed + query + key if has_groups(dimensions) else 0
    tensors = AttentionTensors(query, query, query, query, kept, variables)
    return unfused_attention(dimensions, tensors)


def layer_variables(dimensions: Dimensions) -> Count:
    """What `SelfAttention.forward` holds until it returns: Q, K, V before they were rotated.

    K and V are views of the QKV output, which flash attention copied; Q is a copy with groups.
    """
    rotates = dimensions.architecture.position_embedding_type in ROTARY
    if not (rotates or dimensions.architecture.qk_layernorm):
        return 0
    query = dimensions.query_bytes
    return query + 2 * dimensions.key_bytes + (query if has_groups(dimensions) else 0)


def unfused_kept_inputs(dimensions: Dimensions) -> Count:
    """What Q, K and V keep alive where scores are made.

    With query groups, K and V repeated for each head. Without, V is a view of the QKV output and
    keeps all of it (unless the norms of Q and K do); so are Q and K, unless they are rotated or
    normalised into new tensors.
    """
    architecture = dimensions.architecture
    query = dimensions.query_bytes
    if has_groups(dimensions):
        return 3 * query
    if architecture.qk_layernorm and not dimensions.transformer_engine:
        return 2 * query
    rotated = architecture.position_embedding_type in ROTARY or architecture.qk_layernorm
    return 5 * query if rotated else 3 * query


def has_groups(dimensions: Dimensions) -> bool:
    """Whether several query heads share a key."""
    architecture = dimensions.architecture
    return architecture.num_query_groups < architecture.num_attention_heads


def output_gate(dimensions: Dimensions) -> list[Operation]:
    """x · σ(gate): keeps x and the gate; the projection keeps the product."""
    if not dimensions.architecture.attention_output_gate:
        return []
    query = dimensions.query_bytes
    return [Operation("self_attention.output_gate", 2 * query, 3 * query, 4 * query)]


def bias_dropout_add(dimensions: Dimensions, name: str) -> Operation:
    """x + bias, dropout, residual add: keeps the dropout's mask, one byte an element.

    Its output is the next operation's residual stream, which the next norm keeps.
    """
    stream = dimensions.hidden_bytes
    if dimensions.recipe.hidden_dropout == 0:
        return Operation(name, 0, 2 * stream, stream)
    return Operation(name, stream // dimensions.element, 3 * stream, 2 * stream)
