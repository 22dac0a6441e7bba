"""Every parameter tensor of a model chunk on one rank, in Megatron-Core's module names.

Shapes are this rank's: column-parallel weights have 1/tp of their rows, row-parallel ones 1/tp of
their columns, experts 1/etp of either and num_experts / ep copies; norms, routers and the biases of
row-parallel layers are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from steptally.job import Architecture, Job
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.mamba import inner_channels, projection_width
from steptally.predict.stages import Chunk

CONVOLUTION_WIDTH = 4  # taps of Mamba's causal convolution (`d_conv`)


class Weight(NamedTuple):
    """`copies` tensors of `rows` × `columns` on one rank (a vector has one column).

    `linear` says that its gradient comes from a matrix product, `expert` that it is reduced over
    expert data parallelism.
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
        weights += _mlp(dimensions, "mlp", dimensions.architecture.ffn_hidden_size)
    if kind.mlp == "moe":
        weights += _experts(dimensions)
    return weights


def end_weights(job: Job, dimensions: Dimensions, chunk: Chunk) -> list[Weight]:
    """The tensors of a chunk outside its decoder layers and MTP layers.

    Tied embeddings: with the head on another rank than the embedding, each holds the table.
    """
    architecture = job.architecture
    hidden, rows = architecture.hidden_size, dimensions.vocabulary
    weights: list[Weight] = []
    if chunk.embedding_table:
        weights.append(Weight("embedding.word_embeddings", rows, hidden))
    if chunk.embedding and architecture.position_embedding_type == "learned_absolute":
        length = architecture.max_position_embeddings or job.layout.seq_length
        weights.append(Weight("embedding.position_embeddings", length, hidden))
    for _ in range(chunk.mtp_layers):
        weights += [*_norm(architecture, "mtp.enorm", hidden)]
        weights += [*_norm(architecture, "mtp.hnorm", hidden)]
        weights.append(Weight("mtp.eh_proj", hidden // dimensions.tp, 2 * hidden, linear=True))
        weights += [*_norm(architecture, "mtp.final_layernorm", hidden)]
    if chunk.final_norm:
        weights += [*_norm(architecture, "final_layernorm", hidden)]
    tied = not architecture.untie_embeddings_and_output_weights
    if chunk.head and not (tied and chunk.embedding_table):
        weights.append(Weight("output_layer", rows, hidden, linear=True))
    return weights


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
    yield from _norm(architecture, "input_layernorm", hidden)
    yield from _linear(
        "self_attention.linear_qkv",
        (query + gate + key_value) // tp,
        hidden,
        bias=bias or architecture.add_qkv_bias,
    )
    if architecture.qk_layernorm:
        yield from _norm(architecture, "self_attention.q_layernorm", architecture.kv_channels)
        yield from _norm(architecture, "self_attention.k_layernorm", architecture.kv_channels)
    yield from _linear("self_attention.linear_proj", hidden, query // tp, bias=bias)


def _latent_attention(dimensions: Dimensions) -> Iterator[Weight]:
    """Down projections are whole on every rank under Transformer Engine, else split."""
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    rotated, rank = architecture.qk_pos_emb_head_dim, architecture.kv_lora_rank
    down = 1 if dimensions.transformer_engine else tp
    query = heads * (architecture.qk_head_dim + rotated) // tp
    key_value = heads * (architecture.qk_head_dim + architecture.v_head_dim) // tp
    yield from _norm(architecture, "input_layernorm", hidden)
    if architecture.q_lora_rank is None:
        yield Weight("self_attention.linear_q_proj", query, hidden, linear=True)
    else:
        low = architecture.q_lora_rank
        yield Weight("self_attention.linear_q_down_proj", low // down, hidden, linear=True)
        yield Weight("self_attention.linear_q_up_proj", query, low, linear=True)
    joint = (rank + rotated) // down
    yield Weight("self_attention.linear_kv_down_proj", joint, hidden, linear=True)
    yield Weight("self_attention.linear_kv_up_proj", key_value, rank, linear=True)
    if architecture.qk_layernorm:
        if architecture.q_lora_rank is not None:
            yield from _norm(architecture, "self_attention.q_layernorm", architecture.q_lora_rank)
        yield from _norm(architecture, "self_attention.kv_layernorm", rank)
    yield from _linear(
        "self_attention.linear_proj",
        hidden,
        heads * architecture.v_head_dim // tp,
        bias=architecture.add_bias_linear,
    )


def _mlp(
    dimensions: Dimensions, name: str, width: int, *, with_norm: bool = True
) -> Iterator[Weight]:
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, bias = architecture.hidden_size, architecture.add_bias_linear
    up = 2 * width if architecture.gated_linear_unit else width
    if with_norm:
        yield from _norm(architecture, "pre_mlp_layernorm", hidden)
    yield from _linear(f"{name}.linear_fc1", up // tp, hidden, bias=bias)
    yield from _linear(f"{name}.linear_fc2", hidden, width // tp, bias=bias)


def _experts(dimensions: Dimensions) -> Iterator[Weight]:
    architecture, etp = dimensions.architecture, dimensions.etp
    hidden, latent = architecture.hidden_size, architecture.moe_latent_size
    experts, width = architecture.num_experts or 0, architecture.moe_ffn_hidden_size or 0
    channels = latent or hidden
    up = 2 * width if architecture.gated_linear_unit else width
    local = experts // dimensions.ep
    yield from _norm(architecture, "pre_mlp_layernorm", hidden)
    yield Weight("mlp.router", experts, hidden)
    if latent:
        yield Weight("mlp.fc1_latent_proj", latent, hidden, linear=True)
        yield Weight("mlp.fc2_latent_proj", hidden, latent, linear=True)
    for name, rows, columns in (
        ("mlp.experts.linear_fc1", up // etp, channels),
        ("mlp.experts.linear_fc2", channels, width // etp),
    ):
        yield Weight(f"{name}.weight", rows, columns, local, linear=True, expert=True)
        if architecture.add_bias_linear:
            yield Weight(f"{name}.bias", rows, 1, local, expert=True)
    shared = architecture.moe_shared_expert_intermediate_size
    if shared:
        yield from _mlp(dimensions, "mlp.shared_experts", shared, with_norm=False)


def _mamba(dimensions: Dimensions) -> Iterator[Weight]:
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, inner = architecture.hidden_size, inner_channels(architecture) // tp
    heads = inner // architecture.mamba_head_dim
    convolved = inner + 2 * architecture.mamba_num_groups * architecture.mamba_state_dim // tp
    bias = architecture.add_bias_linear
    yield from _norm(architecture, "norm", hidden)
    yield from _linear("mixer.in_proj", projection_width(architecture) // tp, hidden, bias=bias)
    yield Weight("mixer.conv1d.weight", convolved, CONVOLUTION_WIDTH)
    yield Weight("mixer.conv1d.bias", convolved, 1)
    for name in ("mixer.dt_bias", "mixer.A_log", "mixer.D"):
        yield Weight(name, heads, 1)
    yield Weight("mixer.norm.weight", inner, 1)
    yield from _linear("mixer.out_proj", hidden, inner, bias=bias)
