"""Every linear layer of the model as one rank multiplies it, for one micro-batch.

Matrix shapes and tensor-parallel traffic both follow from this list. Sources: the same modules of
megatron-core 0.16.1 as in `layer_shards`, and their `forward`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steptally.job.job import Job
from steptally.predict.layers import LayerKind
from steptally.predict.mamba_terms import mamba_heads, mamba_inner_size
from steptally.predict.microbatch import gathered_tokens, shard_tokens
from steptally.predict.precision import uses_transformer_engine
from steptally.predict.routing import expert_loads

# How a weight is cut over ranks, and with it who communicates. COLUMN and ROW are cut by tp.
COLUMN, ROW, DUPLICATED = "column", "row", "duplicated"
EXPERT_COLUMN, EXPERT_ROW = "expert column", "expert row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y[rows, outputs] = x[rows, inputs] · W: sizes of this rank's part, for one micro-batch.

    `calls`: equal products, as for several experts; `batch`: those that one grouped product does
    together (`moe_grouped_gemm`). `modules`: the `recompute_modules` that run it again. `precision`
    is `linear` (eight bit where the recipe says so), `high` (never) or `router`.
    """

    name: str
    rows: int
    inputs: int
    outputs: int
    parallel: str
    calls: int = 1
    batch: int = 1
    modules: tuple[str, ...] = ()
    precision: str = "linear"


def layer_linears(job: Job, kind: LayerKind) -> list[Linear]:
    """The linear layers of one decoder layer, in the order of its forward pass.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128, "tensor_model_parallel_size": 2})
    >>> [(linear.name, linear.rows, linear.inputs, linear.outputs)
    ...  for linear in layer_linears(job, LayerKind(mixer="attention", mlp="none"))]
    [('linear_qkv', 32, 64, 96), ('linear_proj', 32, 32, 64)]
    """
    mixers = {"attention": attention_linears, "mla": mla_linears, "mamba": mamba_linears}
    mlps = {"dense": dense_mlp_linears, "moe": moe_linears}
    found: list[Linear] = []
    if kind.mixer in mixers:
        found += mixers[kind.mixer](job)
    if kind.mlp in mlps:
        found += mlps[kind.mlp](job)
    return found


def attention_linears(job: Job) -> list[Linear]:
    """QKV projection (with the output gate, if any) and output projection."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    hidden, queries = architecture.hidden_size, architecture.query_projection_size
    keys_and_values = 2 * architecture.kv_channels * architecture.num_query_groups
    gate = queries if architecture.attention_output_gate else 0
    return [
        _column(job, "linear_qkv", hidden, (queries + keys_and_values + gate) // tp),
        _row(job, "linear_proj", queries // tp, hidden),
    ]


def mla_linears(job: Job) -> list[Linear]:
    """Multi-latent attention: down and up projections of Q and KV, and the output projection."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    queries = heads * (architecture.qk_head_dim + architecture.qk_pos_emb_head_dim) // tp
    keys_and_values = heads * (architecture.qk_head_dim + architecture.v_head_dim) // tp
    latent = architecture.kv_lora_rank + architecture.qk_pos_emb_head_dim
    up = ("mla_up_proj",)
    rank = architecture.q_lora_rank
    found = []
    if rank is not None:
        found.append(_mla_down(job, "linear_q_down_proj", hidden, rank))
    found.append(_mla_down(job, "linear_kv_down_proj", hidden, latent))
    if rank is None:
        found.append(_column(job, "linear_q_proj", hidden, queries, up))
    else:
        found.append(_column(job, "linear_q_up_proj", rank, queries, up))
    found += [
        _column(job, "linear_kv_up_proj", architecture.kv_lora_rank, keys_and_values, up),
        _row(job, "linear_proj", heads * architecture.v_head_dim // tp, hidden),
    ]
    return found


def mamba_linears(job: Job) -> list[Linear]:
    """The input projection (z, x, B, C, Δ) and output projection of a Mamba-2 mixer."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    hidden, inner = architecture.hidden_size, mamba_inner_size(architecture)
    heads = mamba_heads(architecture)
    states = 2 * architecture.mamba_num_groups * architecture.mamba_state_dim
    return [
        _column(job, "mamba.in_proj", hidden, (2 * inner + states + heads) // tp),
        _row(job, "mamba.out_proj", inner // tp, hidden),
    ]


def dense_mlp_linears(job: Job) -> list[Linear]:
    """Up (and gate) projection and down projection."""
    width, modules = job.architecture.ffn_hidden_size, ("mlp",)
    return _mlp(job, "", job.architecture.hidden_size, width, modules)


def moe_linears(job: Job) -> list[Linear]:
    """Router, latent projections, experts (each one's rows apart), shared experts."""
    architecture, tokens = job.architecture, shard_tokens(job)
    hidden, latent = architecture.hidden_size, architecture.moe_latent_size
    modules = ("moe",)
    found = [
        Linear(
            name="router",
            rows=tokens,
            inputs=hidden,
            outputs=architecture.num_experts or 0,
            parallel=DUPLICATED,
            modules=modules,
            precision="router",
        )
    ]
    if latent is not None:
        found.append(_duplicated("fc1_latent_proj", tokens, hidden, latent, modules))
    found += _experts(job, latent or hidden)
    if latent is not None:
        found.append(_duplicated("fc2_latent_proj", tokens, latent, hidden, modules))
    shared = architecture.moe_shared_expert_intermediate_size
    if shared is not None:
        again = ("moe", "shared_experts")
        found += _mlp(job, "shared_experts.", hidden, shared, again)
        if architecture.moe_shared_expert_gate:
            gate = _duplicated("shared_experts.gate", tokens, hidden, 1, again)
            found.append(replace(gate, precision="high"))
    return found


def mtp_linear(job: Job) -> Linear:
    """Multi-token prediction's projection of [embedding, hidden state] to one hidden state."""
    hidden, tp = job.architecture.hidden_size, job.layout.tensor_model_parallel_size
    return _column(job, "mtp.eh_proj", 2 * hidden, hidden // tp)


def output_linear(job: Job) -> Linear:
    """The LM head on the padded vocabulary."""
    vocabulary = job.padded_vocab_size // job.layout.tensor_model_parallel_size
    return Linear(
        name="output_layer",
        rows=gathered_tokens(job),
        inputs=job.architecture.hidden_size,
        outputs=vocabulary,
        parallel=COLUMN,
        precision="high",
    )


def _column(
    job: Job, name: str, inputs: int, outputs: int, modules: tuple[str, ...] = ()
) -> Linear:
    return Linear(
        name=name,
        rows=gathered_tokens(job),
        inputs=inputs,
        outputs=outputs,
        parallel=COLUMN,
        modules=modules,
    )


def _row(job: Job, name: str, inputs: int, outputs: int, modules: tuple[str, ...] = ()) -> Linear:
    return Linear(
        name=name,
        rows=gathered_tokens(job),
        inputs=inputs,
        outputs=outputs,
        parallel=ROW,
        modules=modules,
    )


def _duplicated(
    name: str, rows: int, inputs: int, outputs: int, modules: tuple[str, ...] = ()
) -> Linear:
    return Linear(
        name=name,
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        parallel=DUPLICATED,
        modules=modules,
    )


def _mla_down(job: Job, name: str, inputs: int, outputs: int) -> Linear:
    """Transformer Engine's is whole on every rank and takes its own tokens; the local one is cut.

    Without sequence parallelism every tensor parallel rank then does the same work.
    """
    if uses_transformer_engine(job):
        return _duplicated(name, shard_tokens(job), inputs, outputs)
    return _column(job, name, inputs, outputs // job.layout.tensor_model_parallel_size)


def _mlp(job: Job, prefix: str, hidden: int, width: int, modules: tuple[str, ...]) -> list[Linear]:
    cut = width // job.layout.tensor_model_parallel_size
    up = 2 * cut if job.architecture.gated_linear_unit else cut
    return [
        _column(job, f"{prefix}linear_fc1", hidden, up, modules),
        _row(job, f"{prefix}linear_fc2", cut, hidden, modules),
    ]


def _experts(job: Job, hidden: int) -> list[Linear]:
    architecture = job.architecture
    width = architecture.moe_ffn_hidden_size or architecture.ffn_hidden_size
    cut = width // job.layout.expert_tensor_parallel_size
    up = 2 * cut if architecture.gated_linear_unit else cut
    return [
        Linear(
            name=f"experts.{name}",
            rows=load.rows,
            inputs=inputs,
            outputs=outputs,
            parallel=parallel,
            calls=1 if job.recipe.moe_grouped_gemm else load.experts,
            batch=load.experts if job.recipe.moe_grouped_gemm else 1,
            modules=("moe",),
        )
        for name, inputs, outputs, parallel in (
            ("linear_fc1", hidden, up, EXPERT_COLUMN),
            ("linear_fc2", cut, hidden, EXPERT_ROW),
        )
        for load in expert_loads(job)
    ]
