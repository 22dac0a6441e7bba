"""The products of one whole layer, of the LM head, and of a multi-token-prediction module."""

from __future__ import annotations

from steptally.job import Job
from steptally.predict.attention_terms import attention_terms, mla_terms
from steptally.predict.convention import Convention
from steptally.predict.layers import LayerKind
from steptally.predict.mamba_terms import mamba_terms
from steptally.predict.mlp_terms import dense_mlp_terms, moe_terms
from steptally.predict.terms import Batch, Term, linear_term


def layer_terms(job: Job, kind: LayerKind, batch: Batch, convention: Convention) -> list[Term]:
    """Every matrix product of one layer of this kind."""
    terms: list[Term] = []
    if kind.mixer == "attention":
        terms += attention_terms(job, kind, batch, convention)
    elif kind.mixer == "mla":
        terms += mla_terms(job, kind, batch, convention)
    elif kind.mixer == "mamba":
        terms += mamba_terms(job, batch)
    if kind.mlp == "dense":
        terms += dense_mlp_terms(job, batch)
    elif kind.mlp == "moe":
        terms += moe_terms(job, batch)
    return terms


def output_layer_term(job: Job, batch: Batch) -> Term:
    """The LM head on the padded vocabulary, on every token; tied or not makes no difference."""
    return linear_term("output_layer", batch, job.architecture.hidden_size, job.padded_vocab_size)


def mtp_layer_terms(job: Job, kind: LayerKind, batch: Batch, convention: Convention) -> list[Term]:
    """One multi-token-prediction module before its head: a projection of 2h to h, and a layer.

    Source: DeepSeek-V3, arXiv:2412.19437, section 2.2; `MultiTokenPredictionLayer` of
    megatron-core 0.16.1, whose full recomputation runs projection and layer again.
    """
    hidden = job.architecture.hidden_size
    layer = layer_terms(job, kind, batch, convention)
    return [
        linear_term("mtp.eh_proj", batch, 2 * hidden, hidden),
        *(Term(f"mtp.{term.name}", *term[1:]) for term in layer),
    ]
