"""Arithmetic that is no matrix product: norms, softmax, activations, additions, rotary positions.

A line of its own: it is bound by memory, not by the matrix units, and no MFU counts it. One FLOP is
one arithmetic instruction, exponentials and divisions included. Derived in
docs/formulas/elementwise.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job import Architecture, Job
from steptally.predict.attention_pairs import visible_pairs
from steptally.predict.flops import step_batch
from steptally.predict.layers import LayerKind, architecture_layers, mtp_layer_kinds
from steptally.predict.mlp_terms import expert_width

# Mean, difference, square, sum, scale, gain, shift; an RMSNorm has neither mean nor shift.
NORM_FLOPS_PER_CHANNEL = {"LayerNorm": 7, "RMSNorm": 4, "L2Norm": 3}
SOFTMAX_FLOPS_PER_PAIR = 6  # scale, maximum, difference, exponential, sum, quotient
ROTATION_FLOPS_PER_CHANNEL = 3  # two products and one sum for each channel
GELU_FLOPS, SILU_FLOPS, SQUARED_RELU_FLOPS = 8, 4, 2


def elementwise_flops(job: Job, packed_lengths: Sequence[int] | None = None) -> dict[str, int]:
    """FLOPs of one step over all ranks by kind, forward and backward (twice the forward).

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings(
    ...     {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
    ...      "vocab_size": 128})
    >>> elementwise_flops(job)["softmax"]
    76032
    """
    batch = step_batch(job, packed_lengths)
    architecture = job.architecture
    kinds = [*architecture_layers(architecture), *mtp_layer_kinds(job)]
    pairs = sum(
        int(visible_pairs(kind, batch.lengths))
        for kind in kinds
        if kind.mixer in ("attention", "mla")
    )
    per_token = {
        "norms": sum(_norms(architecture, kind) for kind in kinds) + _norm(architecture),
        "activations": sum(_activation(job, kind) for kind in kinds),
        "additions": sum(_additions(job, kind) for kind in kinds),
        "rotary positions": sum(_rotation(architecture, kind) for kind in kinds),
    }
    forward = {name: int(batch.useful_tokens * count) for name, count in per_token.items()}
    heads = architecture.num_attention_heads
    forward["softmax"] = SOFTMAX_FLOPS_PER_PAIR * batch.sequences * heads * pairs
    # Cross-entropy: a softmax over the vocabulary.
    forward["loss"] = SOFTMAX_FLOPS_PER_PAIR * int(batch.useful_tokens) * job.padded_vocab_size
    return {name: 3 * count for name, count in forward.items()}


def _norm(architecture: Architecture) -> int:
    return NORM_FLOPS_PER_CHANNEL[architecture.normalization] * architecture.hidden_size


def _norms(architecture: Architecture, kind: LayerKind) -> int:
    """One before each sublayer; Gemma has one after each, too."""
    sublayers = (kind.mixer != "none") + (kind.mlp != "none")
    per_sublayer = 2 if architecture.post_layer_norms else 1
    return sublayers * per_sublayer * _norm(architecture)


def _activation(job: Job, kind: LayerKind) -> int:
    architecture = job.architecture
    if architecture.squared_relu:
        each = SQUARED_RELU_FLOPS
    else:
        each = SILU_FLOPS if architecture.swiglu or architecture.quick_geglu else GELU_FLOPS
    each += architecture.gated_linear_unit
    return each * _mlp_channels(job, kind)


def _mlp_channels(job: Job, kind: LayerKind) -> int:
    """Channels that a token's MLP activates."""
    architecture = job.architecture
    if kind.mlp == "dense":
        return architecture.ffn_hidden_size
    if kind.mlp == "moe":
        shared = architecture.moe_shared_expert_intermediate_size or 0
        return architecture.moe_router_topk * expert_width(job) + shared
    return 0


def _additions(job: Job, kind: LayerKind) -> int:
    """The residual after each sublayer, and biases where there are any."""
    architecture = job.architecture
    sublayers = (kind.mixer != "none") + (kind.mlp != "none")
    biases = 0
    if architecture.add_bias_linear:
        biases = sublayers * architecture.hidden_size + _mlp_channels(job, kind)
    return sublayers * architecture.hidden_size + biases


def _rotation(architecture: Architecture, kind: LayerKind) -> int:
    if architecture.position_embedding_type not in ("rope", "mrope", "yarn"):
        return 0
    heads = architecture.num_attention_heads
    if kind.mixer == "mla":
        return ROTATION_FLOPS_PER_CHANNEL * (heads + 1) * architecture.qk_pos_emb_head_dim
    if kind.mixer != "attention":
        return 0
    channels = round(architecture.kv_channels * architecture.rotary_percent)
    return ROTATION_FLOPS_PER_CHANNEL * (heads + architecture.num_query_groups) * channels
