"""Every parameter tensor of one layer on one rank, in the order in which Megatron registers them.

The order decides what shares a gradient bucket. Source: megatron-core 0.16.1, the constructors of
`SelfAttention`, `MLASelfAttention`, `MLP`, `MoELayer`, `MambaMixer` and the specs of
models/gpt/gpt_layer_specs.py and models/mamba/mamba_layer_specs.py.
"""

from __future__ import annotations

from dataclasses import replace

from steptally.job.job import Job
from steptally.predict.layers import LayerKind
from steptally.predict.mamba_terms import (
    CONVOLUTION_WIDTH,
    mamba_convolution_channels,
    mamba_heads,
    mamba_inner_size,
)
from steptally.predict.precision import uses_transformer_engine
from steptally.predict.shard import Shard, column, duplicated, norm, prefixed, row, weight


def layer_shards(job: Job, kind: LayerKind) -> list[Shard]:
    """The parameters of one layer of this kind on one rank."""
    hidden = job.architecture.hidden_size
    shards = [*_mixer_shards(job, kind), *_mlp_shards(job, kind)]
    if job.architecture.post_layer_norms:  # Gemma 2 and 3, which Megatron-Bridge builds
        for sublayer, part in (("attention", kind.mixer), ("mlp", kind.mlp)):
            shards += norm(job, f"post_{sublayer}_layernorm", hidden) if part != "none" else []
    return shards


def _mixer_shards(job: Job, kind: LayerKind) -> list[Shard]:
    hidden, fused = job.architecture.hidden_size, uses_transformer_engine(job)
    if kind.mixer == "none":
        return []
    if kind.mixer == "mamba":
        return prefixed("mixer", mamba_shards(job))
    attention = mla_shards(job) if kind.mixer == "mla" else attention_shards(job)
    # Transformer Engine's QKV layer holds the norm before it; MLA has several readers of it.
    separate = [] if fused and kind.mixer == "attention" else norm(job, "input_layernorm", hidden)
    return [*separate, *prefixed("self_attention", attention)]


def attention_shards(job: Job) -> list[Shard]:
    """Output projection, QKV projection, and the norms of Q and K."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    hidden, queries = architecture.hidden_size, architecture.query_projection_size
    keys_and_values = 2 * architecture.kv_channels * architecture.num_query_groups
    gate = queries if architecture.attention_output_gate else 0
    bias = architecture.add_bias_linear
    heads = architecture.num_attention_heads // tp
    offset = Shard(name="core_attention.softmax_offset", elements=heads)
    shards = [
        *([offset] if architecture.softmax_type == "learnable" else []),
        *row(job, "linear_proj", queries // tp, hidden, bias=bias),
        *column(
            job,
            "linear_qkv",
            hidden,
            (queries + keys_and_values + gate) // tp,
            bias=bias or architecture.add_qkv_bias,
            norm_size=hidden if uses_transformer_engine(job) else 0,
        ),
    ]
    if architecture.qk_layernorm:
        for name in ("q_layernorm", "k_layernorm"):
            shards += norm(job, name, architecture.kv_channels)
    return shards


def mla_shards(job: Job) -> list[Shard]:
    """Multi-latent attention: output projection, down and up projections of Q and of KV."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    query_channels = architecture.qk_head_dim + architecture.qk_pos_emb_head_dim
    queries = heads * query_channels // tp
    keys_and_values = heads * (architecture.qk_head_dim + architecture.v_head_dim) // tp
    latent = architecture.kv_lora_rank + architecture.qk_pos_emb_head_dim
    shards = row(
        job,
        "linear_proj",
        heads * architecture.v_head_dim // tp,
        hidden,
        bias=architecture.add_bias_linear,
    )
    if architecture.q_lora_rank is None:
        shards += column(job, "linear_q_proj", hidden, queries, bias=False)
    else:
        shards += _down(job, "linear_q_down_proj", hidden, architecture.q_lora_rank)
        shards += _up(job, "linear_q_up_proj", architecture.q_lora_rank, queries)
    shards += _down(job, "linear_kv_down_proj", hidden, latent)
    shards += _up(job, "linear_kv_up_proj", architecture.kv_lora_rank, keys_and_values)
    if architecture.qk_layernorm and not uses_transformer_engine(job):
        if architecture.q_lora_rank is not None:
            shards += norm(job, "q_layernorm", architecture.q_lora_rank)
        shards += norm(job, "kv_layernorm", architecture.kv_lora_rank)
    return shards


def _down(job: Job, name: str, inputs: int, outputs: int) -> list[Shard]:
    """Whole on every rank with Transformer Engine; Megatron-Core's own splits its columns."""
    if uses_transformer_engine(job):
        return duplicated(job, name, inputs, outputs, bias=False)
    tp = job.layout.tensor_model_parallel_size
    return column(job, name, inputs, outputs // tp, bias=False)


def _up(job: Job, name: str, inputs: int, outputs: int) -> list[Shard]:
    fused = job.architecture.qk_layernorm and uses_transformer_engine(job)
    return column(job, name, inputs, outputs, bias=False, norm_size=inputs if fused else 0)


def _mlp_shards(job: Job, kind: LayerKind) -> list[Shard]:
    architecture, hidden = job.architecture, job.architecture.hidden_size
    if kind.mlp == "none":
        return []
    if kind.mlp == "moe":
        return [
            *norm(job, "pre_mlp_layernorm", hidden),
            *prefixed("mlp", moe_shards(job)),
        ]
    fused = uses_transformer_engine(job)
    dense = mlp_shards(
        job,
        hidden,
        architecture.ffn_hidden_size,
        job.layout.tensor_model_parallel_size,
        bias=architecture.add_bias_linear,
        norm_size=hidden if fused else 0,
    )
    separate = [] if fused else norm(job, "pre_mlp_layernorm", hidden)
    return [*separate, *prefixed("mlp", dense)]


def mlp_shards(
    job: Job, hidden: int, width: int, parallel_size: int, *, bias: bool, norm_size: int = 0
) -> list[Shard]:
    """Up (and gate) projection and down projection, cut by `parallel_size`."""
    up = (2 if job.architecture.gated_linear_unit else 1) * width // parallel_size
    return [
        *column(job, "linear_fc1", hidden, up, bias=bias, norm_size=norm_size),
        *row(job, "linear_fc2", width // parallel_size, hidden, bias=bias),
    ]


def moe_shards(job: Job) -> list[Shard]:
    """Router, latent projections, this rank's experts, shared experts."""
    architecture = job.architecture
    hidden, latent = architecture.hidden_size, architecture.moe_latent_size
    bias = architecture.add_bias_linear
    experts = architecture.num_experts or 0
    with_sequence = job.layout.sequence_parallel
    shards = [
        Shard(name="router.weight", elements=experts * hidden, sequence_parallel=with_sequence)
    ]
    if bias:
        shards.append(Shard(name="router.bias", elements=experts, sequence_parallel=with_sequence))
    if latent is not None:
        shards += duplicated(job, "fc1_latent_proj", hidden, latent, bias=bias)
        shards += duplicated(job, "fc2_latent_proj", latent, hidden, bias=bias)
    shards += prefixed("experts", expert_shards(job))
    shared = architecture.moe_shared_expert_intermediate_size
    if shared is not None:
        shards += prefixed("shared_experts", shared_expert_shards(job, hidden, shared))
    return shards


def shared_expert_shards(job: Job, hidden: int, width: int) -> list[Shard]:
    """The gate, if any, and an MLP that every token goes through."""
    tp, with_sequence = job.layout.tensor_model_parallel_size, job.layout.sequence_parallel
    gate = Shard(name="gate_weight", elements=hidden, sequence_parallel=with_sequence)
    gates = [gate] if job.architecture.moe_shared_expert_gate else []
    return [*gates, *mlp_shards(job, hidden, width, tp, bias=False)]


def expert_shards(job: Job) -> list[Shard]:
    """The experts of one rank: one MLP each, or weight by weight over all of them if grouped."""
    architecture, layout = job.architecture, job.layout
    count = (architecture.num_experts or 0) // layout.expert_model_parallel_size
    one = mlp_shards(
        job,
        architecture.moe_latent_size or architecture.hidden_size,
        architecture.moe_ffn_hidden_size or architecture.ffn_hidden_size,
        layout.expert_tensor_parallel_size,
        bias=architecture.add_bias_linear,
    )
    reduced_apart = layout.expert_model_parallel_size > 1
    one = [replace(shard, expert=reduced_apart) for shard in one]
    if not job.recipe.moe_grouped_gemm:
        return [
            shard for index in range(count) for shard in prefixed(f"local_experts.{index}", one)
        ]
    if uses_transformer_engine(job):  # TEGroupedMLP: weight0, weight1, …, bias0, …
        return [
            replace(shard, name=f"{shard.name}{index}", sequence_parallel=False)
            for shard in one
            for index in range(count)
        ]
    # Megatron-Core's own GroupedMLP: one tensor for all experts' up and down weights, no bias.
    return [
        replace(shard, name=f"weight{number}", elements=shard.elements * count)
        for number, shard in enumerate((s for s in one if s.name.endswith("weight")), start=1)
    ]


def mamba_shards(job: Job) -> list[Shard]:
    """A Mamba-2 mixer: Δ's bias, A, D, input projection, convolution, norm, output projection."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    hidden, inner = architecture.hidden_size, mamba_inner_size(architecture)
    heads = mamba_heads(architecture)
    states = 2 * architecture.mamba_num_groups * architecture.mamba_state_dim
    convolved = mamba_convolution_channels(architecture) // tp
    per_head = [Shard(name=name, elements=heads // tp) for name in ("dt_bias", "A_log", "D")]
    return [
        *per_head,
        *column(
            job, "in_proj", hidden, (2 * inner + states + heads) // tp, bias=False, norm_size=hidden
        ),
        Shard(name="conv1d.weight", elements=convolved * CONVOLUTION_WIDTH),
        Shard(name="conv1d.bias", elements=convolved),
        Shard(name="norm.weight", elements=inner // tp),
        replace(weight(job, inner // tp * hidden), name="out_proj.weight"),
    ]
