"""Counts that papers and frameworks use for a whole step: 6N and its relatives.

Each takes a job and its tokens and returns FLOPs of a step. None follows the model's products one
by one; docs/conventions.md says how far each is from the exact count, and why.
"""

from __future__ import annotations

from fractions import Fraction

from steptally.job import Job
from steptally.predict.convention import Convention
from steptally.predict.count import Count
from steptally.predict.flops import step_terms
from steptally.predict.parameters import model_size
from steptally.predict.terms import Batch

FULL = Convention(name="full-attention", summary="", source="", full_attention=True)


def six_n(job: Job, batch: Batch) -> Count:
    """6·N·T with N the parameters that a token passes through, embeddings included.

    Hoffmann et al. 2022, arXiv:2203.15556, appendix F (there N counts the embeddings).
    """
    return 6 * model_size(job).active * batch.useful_tokens


def six_n_all(job: Job, batch: Batch) -> Count:
    """6·N·T with N all parameters, idle experts included: what a dense-model script prints."""
    return 6 * model_size(job).total * batch.useful_tokens


def six_n_without_embedding(job: Job, batch: Batch) -> Count:
    """6·N·T with N without embeddings and LM head. Kaplan et al. 2020, arXiv:2001.08361."""
    size = model_size(job)
    return 6 * (size.active - size.embedding) * batch.useful_tokens


def eight_n_without_embedding(job: Job, batch: Batch) -> Count:
    """8·N·T: `six_n_without_embedding` and the forward pass that full recomputation adds."""
    return six_n_without_embedding(job, batch) // 3 * 4


def attention_12lhqt(job: Job, batch: Batch) -> Count:
    """12·L·H·Q·S for each token: both attention products on the full square, three times."""
    architecture = job.architecture
    per_token = 12 * architecture.num_layers * architecture.query_projection_size
    squares = batch.sequences * sum(length * length for length in batch.lengths)
    return per_token * squares


def palm(job: Job, batch: Batch) -> Count:
    """(6N + 12LHQS)·T. Chowdhery et al. 2022, arXiv:2204.02311, appendix B."""
    return six_n(job, batch) + attention_12lhqt(job, batch)


def mpt(job: Job, batch: Batch) -> Count:
    """(6N + 12·L·d·S)·T, N all parameters, d the hidden size.

    mosaicml/llm-foundry, scripts/train/benchmarking/README.md, commit 8c8dd48f7216.
    """
    architecture = job.architecture
    squares = batch.sequences * sum(length * length for length in batch.lengths)
    attention = 12 * architecture.num_layers * architecture.hidden_size * squares
    return six_n_all(job, batch) + attention


def mpt_hfu(job: Job, batch: Batch) -> Fraction:
    """4/3 of `mpt`: a forward pass more, whenever activation checkpointing is on."""
    return Fraction(4 * int(mpt(job, batch)), 3)


def torchtitan(job: Job, batch: Batch) -> Count:
    """(6(N − token embedding) + 12LHQS)·T. pytorch/torchtitan, `get_nparams_and_flops`."""
    size = model_size(job)
    lookup = job.padded_vocab_size * job.architecture.hidden_size
    return 6 * (size.active - lookup) * batch.useful_tokens + attention_12lhqt(job, batch)


def megatron_2024(job: Job, batch: Batch) -> Count:
    """Megatron-LM's own count of 2024: the full square, every layer with experts if any has.

    `num_floating_point_operations` of core_r0.6 to core_r0.9: 12·B·s·L·h²·((1 + g/n + s/h)·q/h +
    …), written out over products.
    """
    architecture, tokens = job.architecture, batch.useful_tokens
    hidden, queries = architecture.hidden_size, architecture.query_projection_size
    keys = architecture.kv_channels * architecture.num_query_groups
    experts = architecture.moe_router_topk if architecture.num_experts else 1
    width = architecture.ffn_hidden_size * experts
    width += architecture.moe_shared_expert_intermediate_size or 0
    matrices = 3 if architecture.swiglu else 2
    linear = 12 * hidden * (queries + keys) + 6 * matrices * hidden * width
    squares = batch.sequences * sum(length * length for length in batch.lengths)
    layers = architecture.num_layers * (linear * tokens + 12 * queries * squares)
    return layers + 6 * tokens * hidden * job.padded_vocab_size


def korthikanti_hfu(job: Job, batch: Batch) -> Count:
    """Hardware FLOPs of Korthikanti et al., arXiv:2205.05198, appendix A.

    Full recomputation adds a forward pass of the layers. Selective recomputation counts attention
    twice (s/3h for s/6h in their equations 8 and 9), though it runs only its forward again.
    """
    granularity = job.layout.recompute_granularity
    total = 0
    for term, layers, _ in step_terms(job, FULL, batch):
        in_layer = term.name not in ("output_layer", "mtp.output_layer")
        total += 3 * layers * term.useful
        if granularity == "full" and in_layer:
            total += layers * term.useful
        if granularity == "selective" and term.name.startswith("core_attention"):
            total += 3 * layers * term.useful
    return total
