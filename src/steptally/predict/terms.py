"""The matrix products of one layer, each with its useful and executed FLOPs.

A term covers one optimizer step over all ranks: sequences, micro-batches and ranks are summed, so
tensor and pipeline parallelism do not appear. Names are Megatron-Core's module names.
Derived in docs/formulas/flops.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steptally.job import Job
from steptally.predict.attention_kernel import UNFUSED, attention_kernel
from steptally.predict.attention_pairs import full_pairs, visible_pairs
from steptally.predict.convention import Convention
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind

CORE_ATTENTION = ("core_attn",)
DENSE_MLP = ("mlp",)


def linear_flops(tokens: Count, inputs: Count, outputs: Count) -> Count:
    """2·T·i·o: one multiplication and one addition per token and weight, one direction.

    Backward costs it twice: once for the gradient of the input, once for that of the weight.

    >>> linear_flops(2048, 256, 512)
    536870912
    """
    return 2 * tokens * inputs * outputs


def attention_product_flops(pairs: Count, heads: Count, channels: Count) -> Count:
    """2·P·n·d: one of the two products of attention (QKᵀ or PV) over P query-key pairs a head.

    >>> attention_product_flops(2048 * 2049 // 2, 32, 128)
    17188257792
    """
    return 2 * pairs * heads * channels


class Term(NamedTuple):
    """Forward FLOPs of one product of one layer; `modules` are those whose recompute re-runs it.

    Useful backward is always twice the useful forward; `executed_backward` is what is run.
    """

    name: str
    useful: Count
    executed: Count
    executed_backward: Count
    modules: tuple[str, ...] = ()


class Batch(NamedTuple):
    """The tokens of a step: `sequences` of `seq` tokens each, filled by documents of `lengths`.

    Padding after the last document is executed and of no use.
    """

    sequences: Count
    seq: int
    lengths: Sequence[int]

    @property
    def tokens(self) -> Count:
        """Tokens that go through every linear layer, padding included."""
        return self.sequences * self.seq

    @property
    def useful_tokens(self) -> Count:
        """Tokens of documents."""
        return self.sequences * sum(self.lengths)


def linear_term(
    name: str, batch: Batch, inputs: Count, outputs: Count, modules: tuple[str, ...] = ()
) -> Term:
    """A linear layer that every token goes through once."""
    executed = linear_flops(batch.tokens, inputs, outputs)
    useful = linear_flops(batch.useful_tokens, inputs, outputs)
    return Term(name, useful, executed, 2 * executed, modules)


def layer_terms(job: Job, kind: LayerKind, batch: Batch, convention: Convention) -> list[Term]:
    """Every matrix product of one layer of this kind."""
    return [*attention_terms(job, kind, batch, convention), *dense_mlp_terms(job, batch)]


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
        if convention.attention == "half":
            useful //= 2
        backward = (2 if unfused else 2 + flash_again) * executed
        terms.append(Term(f"core_attention.{name}", useful, executed, backward, CORE_ATTENTION))
    return terms


def counted_pairs(kind: LayerKind, lengths: Sequence[int], convention: Convention) -> int:
    """The pairs of one head that a convention counts; for `half`, the square to be halved."""
    if convention.attention == "causal":
        return visible_pairs(kind, lengths)
    return sum(full_pairs(length) for length in lengths)


def dense_mlp_terms(job: Job, batch: Batch) -> list[Term]:
    """Up (and gate) projection and down projection."""
    architecture = job.architecture
    hidden, width = architecture.hidden_size, architecture.ffn_hidden_size
    up = 2 * width if architecture.gated_linear_unit else width
    return [
        linear_term("linear_fc1", batch, hidden, up, DENSE_MLP),
        linear_term("linear_fc2", batch, width, hidden, DENSE_MLP),
    ]


def output_layer_term(job: Job, batch: Batch) -> Term:
    """The LM head on the padded vocabulary, on every token; tied or not makes no difference."""
    return linear_term("output_layer", batch, job.architecture.hidden_size, job.padded_vocab_size)
