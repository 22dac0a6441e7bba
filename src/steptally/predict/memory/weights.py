"""Every parameter tensor of a model chunk on one rank, in Megatron-Core's module names.

Shapes are this rank's: column-parallel weights have 1/tp of their rows, row-parallel ones 1/tp of
their columns, experts 1/etp of either and num_experts / ep copies; norms, routers and the biases of
row-parallel layers are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from steptally.job import Architecture, Job
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind
from steptally.predict.mamba_terms import (
    CONVOLUTION_WIDTH,
    mamba_convolution_channels,
    mamba_heads,
    mamba_inner_size,
)
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.mamba import projection_width

WORD_EMBEDDINGS = "embedding.word_embeddings"
HEAD = "output_layer"


class Weight(NamedTuple):
    """`copies` tensors of `rows` × `columns` on one rank (a vector has one column).

    `linear` says that its gradient comes from a matrix product, `expert` that it is an expert's.
    """

    name: str
    rows: Count
    columns: Count
    copies: Count = 1
    linear: bool = False
    expert: bool = False

    @property
    def elements(self) -> Count:
        """Elements of one copy."""
        return self.rows * self.columns


def layer_weights(dimensions: Dimensions, kind: LayerKind) -> list[Weight]:
    """The tensors of one layer, in the order in which Megatron-Core makes them."""
    weights: list[Weight] = []
    if kind.mixer == "attention":
        weights += _attention(dimensions)
    if kind.mixer == "mla":
        weights += _latent_attention(dimensions)
    if kind.mixer == "mamba":
        weights += _mamba(dimensions)
    if kind.mlp == "dense":
        weights += _mlp(dimensions)
    if kind.mlp == "moe":
        weights += _experts(dimensions)
    architecture = dimensions.architecture
    if architecture.post_layer_norms:
        for sublayer in (kind.mixer, kind.mlp):
            if sublayer != "none":
                weights += _norm(architecture, "post_layernorm", architecture.hidden_size)
    return weights


def embedding_weights(job: Job, dimensions: Dimensions) -> list[Weight]:
    """The word embedding, split over the vocabulary, and learned positions."""
    architecture = job.architecture
    hidden = architecture.hidden_size
    weights = [Weight(WORD_EMBEDDINGS, dimensions.vocabulary, hidden)]
    if architecture.position_embedding_type == "learned_absolute":
        length = architecture.max_position_embeddings or job.layout.seq_length
        weights.append(Weight("embedding.position_embeddings", length, hidden))
    return weights


def prediction_weights(dimensions: Dimensions, layer: Sequence[Weight]) -> list[Weight]:
    """One multi-token-prediction depth; `layer` is its transformer layer."""
    architecture = dimensions.architecture
    hidden = architecture.hidden_size
    return [
        *_norm(architecture, "mtp.enorm", hidden),
        *_norm(architecture, "mtp.hnorm", hidden),
        Weight("mtp.eh_proj", hidden // dimensions.tp, 2 * hidden, linear=True),
        *layer,
        *_norm(architecture, "mtp.final_layernorm", hidden),
    ]


def final_norm_weights(architecture: Architecture) -> list[Weight]:
    """The norm after the last decoder layer."""
    return [*_norm(architecture, "final_layernorm", architecture.hidden_size)]


def head_weight(dimensions: Dimensions) -> Weight:
    """The LM head, split over the vocabulary; tied or not, where it has a copy of its own."""
    hidden = dimensions.architecture.hidden_size
    return Weight(HEAD, dimensions.vocabulary, hidden, linear=True)


def _norm(architecture: Architecture, name: str, width: Count) -> Iterator[Weight]:
    """A gain, and a shift where the norm is a LayerNorm; L2Norm has neither."""
    if architecture.normalization != "L2Norm":
        yield Weight(f"{name}.weight", width, 1)
    if architecture.normalization == "LayerNorm":
        yield Weight(f"{name}.bias", width, 1)


def _linear(name: str, rows: Count, columns: Count, *, bias: bool) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", rows, columns, linear=True)
    if bias:
        yield Weight(f"{name}.bias", rows, 1)


def _attention(dimensions: Dimensions) -> Iterator[Weight]:
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, query = architecture.hidden_size, architecture.query_projection_size
    key_value = 2 * architecture.kv_channels * architecture.num_query_groups
    gate = query if architecture.attention_output_gate else 0
    bias = architecture.add_bias_linear
    projection = [*_linear("self_attention.linear_proj", hidden, query // tp, bias=bias)]
    if dimensions.transformer_engine:  # the norm is part of the QKV layer
        yield from projection
    yield from _norm(architecture, "input_layernorm", hidden)
    if not dimensions.transformer_engine:
        yield from projection
    if architecture.softmax_type == "learnable":
        heads = architecture.num_attention_heads // tp
        yield Weight("self_attention.core_attention.softmax_offset", heads, 1)
    yield from _linear(
        "self_attention.linear_qkv",
        (query + gate + key_value) // tp,
        hidden,
        bias=bias or architecture.add_qkv_bias,
    )
    if architecture.qk_layernorm:
        yield from _norm(architecture, "self_attention.q_layernorm", architecture.kv_channels)
        yield from _norm(architecture, "self_attention.k_layernorm", architecture.kv_channels)


def _latent_attention(dimensions: Dimensions) -> Iterator[Weight]:
    """Down projections are whole on every rank under Transformer Engine, else split."""
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    rotated, rank = architecture.qk_pos_emb_head_dim, architecture.kv_lora_rank
    down = 1 if dimensions.transformer_engine else tp
    query = heads * (architecture.qk_head_dim + rotated) // tp
    key_value = heads * (architecture.qk_head_dim + architecture.v_head_dim) // tp
    yield from _norm(architecture, "input_layernorm", hidden)
    yield from _linear(
        "self_attention.linear_proj",
        hidden,
        heads * architecture.v_head_dim // tp,
        bias=architecture.add_bias_linear,
    )
    low = architecture.q_lora_rank
    if low is None:
        yield Weight("self_attention.linear_q_proj", query, hidden, linear=True)
    else:
        yield Weight("self_attention.linear_q_down_proj", low // down, hidden, linear=True)
        yield from _latent_norm(dimensions, "self_attention.q_layernorm", low, fused=True)
        yield Weight("self_attention.linear_q_up_proj", query, low, linear=True)
    joint = (rank + rotated) // down
    yield Weight("self_attention.linear_kv_down_proj", joint, hidden, linear=True)
    yield from _latent_norm(dimensions, "self_attention.kv_layernorm", rank, fused=True)
    yield Weight("self_attention.linear_kv_up_proj", key_value, rank, linear=True)
    if low is not None:
        yield from _latent_norm(dimensions, "self_attention.q_layernorm", low, fused=False)
    yield from _latent_norm(dimensions, "self_attention.kv_layernorm", rank, fused=False)


def _latent_norm(dimensions: Dimensions, name: str, width: int, *, fused: bool) -> Iterator[Weight]:
    """The norm of a latent: part of the up projection under Transformer Engine, else last."""
    architecture = dimensions.architecture
    if architecture.qk_layernorm and fused == dimensions.transformer_engine:
        yield from _norm(architecture, name, width)


def _mlp(dimensions: Dimensions) -> Iterator[Weight]:
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, bias = architecture.hidden_size, architecture.add_bias_linear
    width = architecture.ffn_hidden_size
    up = 2 * width if architecture.gated_linear_unit else width
    yield from _norm(architecture, "pre_mlp_layernorm", hidden)
    yield from _linear("mlp.linear_fc1", up // tp, hidden, bias=bias)
    yield from _linear("mlp.linear_fc2", hidden, width // tp, bias=bias)


def expert_ffn(architecture: Architecture) -> int:
    """Width of one expert's MLP, over all ranks."""
    return architecture.moe_ffn_hidden_size or architecture.ffn_hidden_size


def _experts(dimensions: Dimensions) -> Iterator[Weight]:
    architecture, etp = dimensions.architecture, dimensions.etp
    hidden, latent = architecture.hidden_size, architecture.moe_latent_size
    experts, width = architecture.num_experts or 0, expert_ffn(architecture)
    channels = latent or hidden
    up = 2 * width if architecture.gated_linear_unit else width
    local = experts // dimensions.ep
    yield from _norm(architecture, "pre_mlp_layernorm", hidden)
    yield Weight("mlp.router.weight", experts, hidden)
    if architecture.add_bias_linear:
        yield Weight("mlp.router.bias", experts, 1)
    if latent:
        bias = architecture.add_bias_linear
        yield from _linear("mlp.fc1_latent_proj", latent, hidden, bias=bias)
        yield from _linear("mlp.fc2_latent_proj", hidden, latent, bias=bias)
    # Megatron-Core's own GroupedMLP: one tensor for all experts, no bias.
    joint = dimensions.recipe.moe_grouped_gemm and not dimensions.transformer_engine
    for name, rows, columns in (
        ("mlp.experts.linear_fc1", up // etp, channels),
        ("mlp.experts.linear_fc2", channels, width // etp),
    ):
        if joint:
            yield Weight(f"{name}.weight", local * rows, columns, linear=True, expert=True)
            continue
        yield Weight(f"{name}.weight", rows, columns, local, linear=True, expert=True)
        if architecture.add_bias_linear:
            yield Weight(f"{name}.bias", rows, 1, local, expert=True)
    shared = architecture.moe_shared_expert_intermediate_size
    if shared:
        up = 2 * shared if architecture.gated_linear_unit else shared
        tp = dimensions.tp
        yield from _linear("mlp.shared_experts.linear_fc1", up // tp, hidden, bias=False)
        yield from _linear("mlp.shared_experts.linear_fc2", hidden, shared // tp, bias=False)
        if architecture.moe_shared_expert_gate:
            yield Weight("mlp.shared_experts.gate_weight", 1, hidden)


def _mamba(dimensions: Dimensions) -> Iterator[Weight]:
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, inner = architecture.hidden_size, mamba_inner_size(architecture) // tp
    heads = mamba_heads(architecture) // tp
    convolved = mamba_convolution_channels(architecture) // tp
    yield from _norm(architecture, "norm", hidden)
    yield from _linear("mixer.in_proj", projection_width(architecture) // tp, hidden, bias=False)
    yield Weight("mixer.conv1d.weight", convolved, CONVOLUTION_WIDTH)
    yield Weight("mixer.conv1d.bias", convolved, 1)
    for name in ("mixer.dt_bias", "mixer.A_log", "mixer.D"):
        yield Weight(name, heads, 1)
    yield Weight("mixer.norm.weight", inner, 1)
    yield from _linear("mixer.out_proj", hidden, inner, bias=False)
