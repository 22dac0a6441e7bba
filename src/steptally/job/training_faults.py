"""What megatron-core 0.16.1 builds but fails to train: each account says it, a run refuses it.

The accounts of such a job are still what its settings come to: FLOPs do not depend on most of
these, and a later version may train it. Hence a sentence and no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from steptally.job.job import Job


def training_faults(job: Job) -> tuple[str, ...]:
    """One sentence for each reason why Megatron-Core would not train the job.

    >>> from steptally.job import job_from_settings
    >>> training_faults(job_from_settings({"num_layers": 1, "hidden_size": 64, "seq_length": 32,
    ...     "num_attention_heads": 4, "vocab_size": 128, "recompute_granularity": "selective",
    ...     "recompute_modules": "mlp", "add_bias_linear": True}))[0][:31]
    'recompute_modules names mlp and'
    """
    return tuple(fault for rule in RULES for fault in rule(job))


def experts_need_sequence_parallel(job: Job) -> Iterator[str]:
    """`MoELayer.forward` raises in training under tensor parallelism alone."""
    layout = job.layout
    tp = layout.tensor_model_parallel_size
    if job.architecture.num_experts is not None and tp > 1 and not layout.sequence_parallel:
        yield (
            f"num_experts with tensor_model_parallel_size {tp} trains only with "
            f"sequence_parallel (megatron-core's MoELayer.forward raises): set sequence_parallel."
        )


def padded_capacity_is_there(job: Job) -> Iterator[str]:
    """The padded dispatch takes as many rows of each expert as its capacity: no more exist.

    capacity = ⌈tokens · topk / experts · factor⌉ of `get_capacity`, of a rank's own tokens.
    """
    architecture, layout, recipe = job.architecture, job.layout, job.recipe
    factor, experts = recipe.moe_expert_capacity_factor, architecture.num_experts
    if experts is None or factor is None or not recipe.moe_pad_expert_input_to_capacity:
        return
    split = layout.context_parallel_size
    if layout.sequence_parallel:
        split *= layout.tensor_model_parallel_size
    tokens = layout.micro_batch_size * layout.seq_length // split
    capacity = ceil(tokens * architecture.moe_router_topk / experts * factor)
    if capacity > tokens:
        most = experts / architecture.moe_router_topk
        yield (
            f"moe_expert_capacity_factor {factor:g} with padding gives each expert {capacity} rows "
            f"of a rank's {tokens} tokens, and megatron-core fails to permute more than there are: "
            f"use at most num_experts / moe_router_topk = {most:g}."
        )


def output_gate_is_split_like_queries(job: Job) -> Iterator[str]:
    """Where ranks share a query group, each takes its queries but the gate of the whole group.

    Multi-latent attention has no gate (`MLATransformerConfig`).
    """
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    if not architecture.attention_output_gate:
        return
    if architecture.multi_latent_attention:
        yield (
            "attention_output_gate does not exist for multi_latent_attention (megatron-core "
            "raises): remove one of them."
        )
    elif architecture.num_query_groups < tp:
        yield (
            f"attention_output_gate with num_query_groups {architecture.num_query_groups} and "
            f"tensor_model_parallel_size {tp} fails in megatron-core, which does not split the "
            f"gate of a shared group: use a tensor_model_parallel_size of at most "
            f"{architecture.num_query_groups}."
        )


def recomputed_mlp_has_no_bias(job: Job) -> Iterator[str]:
    """The checkpoint returns the bias itself, so that its backward runs the checkpoint again."""
    layout, architecture = job.layout, job.architecture
    selective = layout.recompute_granularity == "selective" and "mlp" in layout.recompute_modules
    if selective and architecture.add_bias_linear and _has_dense_layers(job):
        yield (
            "recompute_modules names mlp and add_bias_linear is set: megatron-core's backward "
            "never ends, as it recomputes the bias from itself; set add_bias_linear=false, or "
            "recompute_granularity full."
        )


def _has_dense_layers(job: Job) -> bool:
    architecture, frequency = job.architecture, job.architecture.moe_layer_freq
    if architecture.hybrid_override_pattern is not None:
        return "-" in architecture.hybrid_override_pattern
    if architecture.num_experts is None:
        return True
    return frequency > 1 if isinstance(frequency, int) else not all(frequency)


RULES = (
    experts_need_sequence_parallel,
    padded_capacity_is_there,
    output_gate_is_split_like_queries,
    recomputed_mlp_has_no_bias,
)
