"""The FLOPs that Megatron-LM and Megatron-Bridge print, to the integer.

Both count the model's products three times, the causal half of the square in attention (S²/2),
the padded vocabulary, `moe_router_topk` experts, and no router. They differ in what is listed
below. Each function says at which commit it was read; docs/conventions.md lists the differences
from the exact count.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from steptally.job import Architecture, Job
from steptally.predict.attention_pairs import visible_pairs
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind, count_layer_kinds, mtp_layer_kinds
from steptally.predict.mlp_terms import expert_width
from steptally.predict.terms import Batch

# Twice for a multiplication and an addition, three times for forward and both halves of backward.
PER_WEIGHT = 6
# The scan of a state-space layer, per token, channel and state, forward.
SCAN_FLOPS = 7


class Family(NamedTuple):
    """What tells the two apart: which gates have three matrices, and whether windows count."""

    every_gate: bool
    windows: bool


MEGATRON_LM = Family(every_gate=False, windows=False)
BRIDGE = Family(every_gate=True, windows=True)


def megatron_lm_flops(job: Job, batch: Batch) -> Count:
    """`num_floating_point_operations` of Megatron-LM's megatron/training/training.py.

    Read at commit 1fdd0e1b407a269baf6a3a9bedf37b39314e2702 (2026); for one length of sequence it
    counts as 001b00c2734d8f0fad096fe48a382fedf755d321 does. Only `swiglu` counts as a gate.
    """
    return _family_flops(job, batch, MEGATRON_LM)


def bridge_flops(job: Job, batch: Batch) -> Count:
    """`num_floating_point_operations` of Megatron-Bridge's training/utils/flop_utils.py.

    Read at commit 0494433be0f526f59f7ad56bec005279af32c375 (2026): every gated activation has three
    matrices, and a sliding window counts its exact pairs. Before NVIDIA-NeMo/Megatron-Bridge#3947
    (May 2026) it counted as Megatron-LM does, or half the window for each query.
    """
    return _family_flops(job, batch, BRIDGE)


def _family_flops(job: Job, batch: Batch, family: Family) -> Count:
    architecture = job.architecture
    if architecture.hybrid_override_pattern is not None:
        return 3 * _hybrid_forward(job, batch, family)
    kinds = Counter(count_layer_kinds(architecture))
    if architecture.mtp_num_layers:
        kinds.update(mtp_layer_kinds(job))
    per_token = _head_weights(job) + _mtp_weights(job)
    core = 0
    for kind, layers in kinds.items():
        per_token += layers * _layer_weights(job, kind, family)
        core += layers * _core_products(job, kind, batch, family)
    return PER_WEIGHT * batch.useful_tokens * per_token + 3 * core


def _layer_weights(job: Job, kind: LayerKind, family: Family) -> int:
    """Multiplications per token of a layer's linear parts."""
    architecture = job.architecture
    mixer = _mla_weights(architecture) if kind.mixer == "mla" else _attention_weights(architecture)
    return mixer + _mlp_weights(job, kind, family)


def _attention_weights(architecture: Architecture) -> int:
    hidden, queries = architecture.hidden_size, architecture.query_projection_size
    keys_and_values = 2 * architecture.kv_channels * architecture.num_query_groups
    gate = queries if architecture.attention_output_gate else 0
    return hidden * (queries + keys_and_values + gate) + queries * hidden


def _mla_weights(architecture: Architecture) -> int:
    """Each low-rank projection counts one more per latent channel: its norm."""
    hidden, heads = architecture.hidden_size, architecture.num_attention_heads
    queries = heads * (architecture.qk_head_dim + architecture.qk_pos_emb_head_dim)
    values = heads * architecture.v_head_dim
    keys_and_values = heads * architecture.qk_head_dim + values
    rank = architecture.q_lora_rank
    query = hidden * queries if rank is None else rank * (hidden + queries + 1)
    return (
        query
        + architecture.kv_lora_rank * (hidden + keys_and_values + 1)
        + hidden * architecture.qk_pos_emb_head_dim
        + values * hidden
    )


def _mlp_weights(job: Job, kind: LayerKind, family: Family) -> int:
    architecture, matrices = job.architecture, _matrices(job.architecture, family)
    if kind.mlp == "dense":
        return matrices * architecture.hidden_size * architecture.ffn_hidden_size
    if kind.mlp == "moe":
        return _moe_weights(job, matrices)
    return 0


def _moe_weights(job: Job, matrices: int) -> int:
    architecture = job.architecture
    hidden, latent = architecture.hidden_size, architecture.moe_latent_size
    routed = matrices * (latent or hidden) * expert_width(job) * architecture.moe_router_topk
    projections = 2 * hidden * latent if latent else 0
    shared = architecture.moe_shared_expert_intermediate_size or 0
    return routed + projections + matrices * hidden * shared


def _matrices(architecture: Architecture, family: Family) -> int:
    gated = architecture.gated_linear_unit if family.every_gate else architecture.swiglu
    return 3 if gated else 2


def _core_products(job: Job, kind: LayerKind, batch: Batch, family: Family) -> Count:
    """Forward FLOPs of QKᵀ and PV: 2·P·(key and value channels), with 2·P = S² or exact pairs."""
    architecture = job.architecture
    if kind.mixer == "mla":
        key = architecture.qk_head_dim + architecture.qk_pos_emb_head_dim
        channels = architecture.num_attention_heads * (key + architecture.v_head_dim)
    else:
        channels = 2 * architecture.query_projection_size
    return batch.sequences * _doubled_pairs(kind, batch, family) * channels


def _doubled_pairs(kind: LayerKind, batch: Batch, family: Family) -> int:
    longest = max(batch.lengths)
    if family.windows and kind.window is not None and kind.window < longest:
        return 2 * int(
            visible_pairs(LayerKind(mixer="", mlp="", window=kind.window), batch.lengths)
        )
    return sum(length * length for length in batch.lengths)


def _head_weights(job: Job) -> int:
    """The LM head, once more for each multi-token-prediction module."""
    heads = 1 + (job.architecture.mtp_num_layers or 0)
    return heads * job.architecture.hidden_size * job.padded_vocab_size


def _mtp_weights(job: Job) -> int:
    """A projection of 2h to h and three norms for each multi-token-prediction module."""
    hidden = job.architecture.hidden_size
    return (job.architecture.mtp_num_layers or 0) * (3 * hidden + 2 * hidden * hidden)


def _hybrid_forward(job: Job, batch: Batch, family: Family) -> Count:
    """Forward FLOPs of a hybrid model; of multi-token prediction only the heads count."""
    architecture, tokens = job.architecture, batch.useful_tokens
    matrices = 3 if architecture.gated_linear_unit and family.every_gate else 2
    matrices = 3 if architecture.swiglu else matrices
    total = 2 * tokens * _head_weights(job)
    for kind, layers in count_layer_kinds(architecture).items():
        if kind.mixer == "mamba":
            total += layers * _mamba_forward(architecture, tokens)
        elif kind.mixer == "attention":
            squares = batch.sequences * sum(length * length for length in batch.lengths)
            linear = 2 * tokens * (_attention_weights(architecture) - _gate_weights(architecture))
            total += layers * (linear + 2 * squares * architecture.query_projection_size)
        elif kind.mlp == "dense":
            weights = matrices * architecture.hidden_size * architecture.ffn_hidden_size
            total += layers * 2 * tokens * weights
        else:
            total += layers * 2 * tokens * _moe_weights(job, matrices)
    return total


def _gate_weights(architecture: Architecture) -> int:
    """The hybrid path does not count `attention_output_gate`."""
    gated = architecture.attention_output_gate
    return architecture.hidden_size * architecture.query_projection_size if gated else 0


def _mamba_forward(architecture: Architecture, tokens: Count) -> Count:
    """Input projection, scan, output projection, with an inner width of 2h whatever the heads."""
    hidden, states = architecture.hidden_size, architecture.mamba_state_dim
    inner = 2 * hidden
    heads = architecture.mamba_num_heads or inner // architecture.mamba_head_dim
    projected = 2 * inner + 2 * architecture.mamba_num_groups * states + heads
    linear = 2 * tokens * (hidden * projected + inner * hidden)
    return linear + SCAN_FLOPS * tokens * inner * states
