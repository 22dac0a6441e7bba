"""The products of one attention layer: projections, QKᵀ and PV; grouped, latent and local."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job import Job
from steptally.predict.attention_kernel import UNFUSED, attention_kernel
from steptally.predict.attention_pairs import full_pairs, visible_pairs
from steptally.predict.convention import Convention
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind
from steptally.predict.mlp_terms import duplicated_copies
from steptally.predict.terms import Batch, Term, attention_product_flops, linear_term

CORE_ATTENTION = ("core_attn",)
MLA_UP_PROJECTION = ("mla_up_proj",)


def attention_terms(job: Job, kind: LayerKind, batch: Batch, convention: Convention) -> list[Term]:
    """QKV projection, QKᵀ, PV, output projection, with grouped queries and `kv_channels`.

    Grouped queries make K and V narrower, not the products: each query head still meets each key.
    """
    architecture = job.architecture
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    channels, queries = architecture.kv_channels, architecture.query_projection_size
    keys_and_values = 2 * channels * architecture.num_query_groups
    gate = queries if architecture.attention_output_gate else 0
    return [
        linear_term("linear_qkv", batch, hidden, queries + keys_and_values + gate),
        *core_attention_terms(job, kind, batch, convention, heads, channels, channels),
        linear_term("linear_proj", batch, queries, hidden),
    ]


def mla_terms(job: Job, kind: LayerKind, batch: Batch, convention: Convention) -> list[Term]:
    """Multi-latent attention: queries, keys and values come up from low-rank latents.

    Keys carry `qk_pos_emb_head_dim` rotated channels that all heads share. Source:
    `MLASelfAttention` of megatron-core 0.16.1 and DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    architecture = job.architecture
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    rotated, latent = architecture.qk_pos_emb_head_dim, architecture.kv_lora_rank
    key_channels = architecture.qk_head_dim + rotated
    value_channels = architecture.v_head_dim
    up = heads * (architecture.qk_head_dim + value_channels)
    copies = mla_down_projection_copies(job)
    return [
        *_mla_query_terms(job, batch, heads * key_channels, copies),
        linear_term("linear_kv_down_proj", batch, hidden, latent + rotated, copies=copies),
        linear_term("linear_kv_up_proj", batch, latent, up, MLA_UP_PROJECTION),
        *core_attention_terms(job, kind, batch, convention, heads, key_channels, value_channels),
        linear_term("linear_proj", batch, heads * value_channels, hidden),
    ]


def _mla_query_terms(job: Job, batch: Batch, outputs: int, copies: Count) -> list[Term]:
    hidden, rank = job.architecture.hidden_size, job.architecture.q_lora_rank
    if rank is None:
        return [linear_term("linear_q_proj", batch, hidden, outputs, MLA_UP_PROJECTION)]
    return [
        linear_term("linear_q_down_proj", batch, hidden, rank, copies=copies),
        linear_term("linear_q_up_proj", batch, rank, outputs, MLA_UP_PROJECTION),
    ]


def mla_down_projection_copies(job: Job) -> Count:
    """How many ranks run each down projection whole.

    Transformer Engine's spec duplicates them over tensor parallelism; the local spec splits them.
    """
    return 1 if job.recipe.transformer_impl == "local" else duplicated_copies(job)


def core_attention_terms(
    job: Job,
    kind: LayerKind,
    batch: Batch,
    convention: Convention,
    heads: Count,
    query_channels: Count,
    value_channels: Count,
) -> list[Term]:
    """QKᵀ and PV. Flash attention computes QKᵀ a second time in backward: 2 products, then 5."""
    useful_pairs = batch.sequences * counted_pairs(kind, batch.lengths, convention)
    unfused = attention_kernel(job) == UNFUSED
    pairs = full_pairs(batch.seq) if unfused else visible_pairs(kind, batch.lengths)
    terms = []
    for name, channels, flash_again in (("qk", query_channels, 1), ("pv", value_channels, 0)):
        useful = attention_product_flops(useful_pairs, heads, channels)
        executed = attention_product_flops(batch.sequences * pairs, heads, channels)
        backward = (2 if unfused else 2 + flash_again) * executed
        terms.append(Term(f"core_attention.{name}", useful, executed, backward, CORE_ATTENTION))
    return terms


def counted_pairs(kind: LayerKind, lengths: Sequence[int], convention: Convention) -> Count:
    """The pairs of one head that a convention counts."""
    if convention.full_attention:
        return sum(full_pairs(length) for length in lengths)
    return visible_pairs(kind, lengths)
