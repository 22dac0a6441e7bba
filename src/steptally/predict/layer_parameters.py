"""The parameter tensors of one layer, over all ranks.

Source: `SelfAttention`, `MLASelfAttention`, `MLP`, `MoELayer` and `MambaMixer` of megatron-core
0.16.1 and the specs that build them.
"""

from __future__ import annotations

from typing import NamedTuple

from steptally.job import Architecture
from steptally.predict.layers import LayerKind
from steptally.predict.mamba_terms import (
    CONVOLUTION_WIDTH,
    mamba_convolution_channels,
    mamba_heads,
    mamba_inner_size,
)
from steptally.predict.parameter_counts import linear_parameters, norm_parameters


class Tensor(NamedTuple):
    """Parameters of one name: how many there are, and how many a token passes through."""

    name: str
    size: int
    active: int

    def times(self, layers: int) -> Tensor:
        """The same in so many layers."""
        return Tensor(self.name, layers * self.size, layers * self.active)


def whole(name: str, count: int) -> Tensor:
    """A tensor that every token uses."""
    return Tensor(name, count, count)


def layer_parameters(architecture: Architecture, kind: LayerKind) -> list[Tensor]:
    """Every parameter tensor of one layer of this kind."""
    tensors: list[Tensor] = []
    hidden_norm = norm_parameters(architecture, architecture.hidden_size)
    if kind.mixer == "mamba":
        tensors += [whole("mamba.norm", hidden_norm), *_mamba(architecture)]
    elif kind.mixer != "none":
        tensors.append(whole("input_layernorm", hidden_norm))
        tensors += _mla(architecture) if kind.mixer == "mla" else _attention(architecture)
    if kind.mlp != "none":
        tensors.append(whole("pre_mlp_layernorm", hidden_norm))
        tensors += _moe(architecture) if kind.mlp == "moe" else _dense_mlp(architecture)
    if architecture.post_layer_norms:
        sublayers = (kind.mixer != "none") + (kind.mlp != "none")
        tensors.append(whole("post_layer_norms", sublayers * hidden_norm))
    return tensors


def _attention(architecture: Architecture) -> list[Tensor]:
    hidden, channels = architecture.hidden_size, architecture.kv_channels
    queries = architecture.query_projection_size
    outputs = queries + 2 * channels * architecture.num_query_groups
    if architecture.attention_output_gate:
        outputs += queries
    qkv_bias = architecture.add_bias_linear or architecture.add_qkv_bias
    tensors = [
        whole("linear_qkv", linear_parameters(hidden, outputs, qkv_bias)),
        whole("linear_proj", linear_parameters(queries, hidden, architecture.add_bias_linear)),
    ]
    if architecture.qk_layernorm:
        norm = norm_parameters(architecture, channels)
        tensors += [whole("q_layernorm", norm), whole("k_layernorm", norm)]
    if architecture.softmax_type == "learnable":
        tensors.append(whole("softmax_offset", architecture.num_attention_heads))
    return tensors


def _mla(architecture: Architecture) -> list[Tensor]:
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    query_rank, latent = architecture.q_lora_rank, architecture.kv_lora_rank
    queries = heads * (architecture.qk_head_dim + architecture.qk_pos_emb_head_dim)
    values = heads * architecture.v_head_dim
    tensors = []
    if query_rank is None:
        tensors.append(whole("linear_q_proj", hidden * queries))
    else:
        tensors.append(whole("linear_q_down_proj", hidden * query_rank))
        tensors.append(whole("linear_q_up_proj", query_rank * queries))
    tensors += [
        whole("linear_kv_down_proj", hidden * (latent + architecture.qk_pos_emb_head_dim)),
        whole("linear_kv_up_proj", latent * (heads * architecture.qk_head_dim + values)),
        whole("linear_proj", linear_parameters(values, hidden, architecture.add_bias_linear)),
    ]
    if architecture.qk_layernorm:
        if query_rank is not None:
            tensors.append(whole("q_layernorm", norm_parameters(architecture, query_rank)))
        tensors.append(whole("kv_layernorm", norm_parameters(architecture, latent)))
    return tensors


def _dense_mlp(architecture: Architecture) -> list[Tensor]:
    return [
        whole(f"linear_{name}", count)
        for name, count in _mlp_counts(
            architecture,
            architecture.hidden_size,
            architecture.ffn_hidden_size,
            architecture.add_bias_linear,
        )
    ]


def _mlp_counts(
    architecture: Architecture, hidden: int, width: int, bias: bool
) -> list[tuple[str, int]]:
    up = 2 * width if architecture.gated_linear_unit else width
    return [
        ("fc1", linear_parameters(hidden, up, bias)),
        ("fc2", linear_parameters(width, hidden, bias)),
    ]


def _moe(architecture: Architecture) -> list[Tensor]:
    hidden, experts = architecture.hidden_size, architecture.num_experts or 0
    bias, latent = architecture.add_bias_linear, architecture.moe_latent_size
    tensors = [whole("router", linear_parameters(hidden, experts, bias))]
    if latent is not None:
        tensors.append(whole("fc1_latent_proj", linear_parameters(hidden, latent, bias)))
        tensors.append(whole("fc2_latent_proj", linear_parameters(latent, hidden, bias)))
    width = architecture.moe_ffn_hidden_size or architecture.ffn_hidden_size
    for name, count in _mlp_counts(architecture, latent or hidden, width, bias):
        active = architecture.moe_router_topk * count
        tensors.append(Tensor(f"experts.linear_{name}", experts * count, active))
    shared = architecture.moe_shared_expert_intermediate_size
    if shared is not None:
        tensors += [
            whole(f"shared_experts.linear_{name}", count)
            for name, count in _mlp_counts(architecture, hidden, shared, bias=False)
        ]
        if architecture.moe_shared_expert_gate:
            tensors.append(whole("shared_experts.gate", hidden))
    return tensors


def _mamba(architecture: Architecture) -> list[Tensor]:
    hidden, inner = architecture.hidden_size, mamba_inner_size(architecture)
    heads = mamba_heads(architecture)
    states = architecture.mamba_num_groups * architecture.mamba_state_dim
    convolved = mamba_convolution_channels(architecture)
    return [
        whole("mamba.in_proj", hidden * (2 * inner + 2 * states + heads)),
        whole("mamba.conv1d", linear_parameters(CONVOLUTION_WIDTH, convolved, bias=True)),
        whole("mamba.scan", 3 * heads + inner),  # Δ's bias, A, D; gain of the gated norm
        whole("mamba.out_proj", inner * hidden),
    ]
