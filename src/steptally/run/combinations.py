"""Combinations that a run refuses: Megatron-LM's own argument checks, and what the engine lacks.

Megatron-Core alone accepts some of them and fails minutes later, or trains a wrong model without a
word. Sources: Megatron-LM's `validate_args` (megatron/training/arguments.py) and the assertions of
megatron-core 0.16.1, both named by their setting below. What divides what is `job.rules`.
"""

from __future__ import annotations

import re

from steptally.engine.adapt import uses_transformer_engine
from steptally.engine.availability import EngineParts
from steptally.engine.stages import stages_of, virtual_stages
from steptally.errors import InputError
from steptally.job import Job
from steptally.job.rules import nearest_multiples
from steptally.job.training_faults import training_faults
from steptally.run.expert_combinations import EXPERT_RULES, gloo_gathers_equal_parts


def check_combinations(job: Job, parts: EngineParts) -> None:
    """Raise `InputError` for the first rule that the job breaks."""
    for rule in RULES:
        rule(job)
    if job.architecture.num_experts is not None:
        for rule in EXPERT_RULES:
            rule(job)
        if not parts.cuda:
            gloo_gathers_equal_parts(job)
    if not uses_transformer_engine(job, parts):
        for rule in LOCAL_RULES:
            rule(job)
        if parts.cuda and parts.apex is None:
            norms_know_sequence_parallel(job)


def it_trains(job: Job) -> None:
    """Every verb says what Megatron-Core would not train; a run refuses it."""
    for fault in training_faults(job):
        raise InputError(fault)


def interleaving_with_two_stages(job: Job) -> None:
    """Two sends between the same two ranks in one batch get mixed up: silently wrong in core."""
    layout = job.layout
    chunks = virtual_stages(layout)
    if chunks is None:
        return
    if layout.pipeline_model_parallel_size == 2 and not job.recipe.overlap_p2p_communication:
        raise InputError(
            f"pipeline_model_parallel_size is 2 with virtual_pipeline_model_parallel_size {chunks} "
            "and without overlap_p2p_communication: batched communication would mix up the two "
            "messages between the same two ranks and train a wrong model. Set "
            "overlap_p2p_communication, or use more than 2 stages."
        )


def interleaving_has_enough_micro_batches(job: Job) -> None:
    """The interleaved schedule deals micro-batches in groups of at least one per stage."""
    layout = job.layout
    if virtual_stages(layout) is None:
        return
    stages, count = layout.pipeline_model_parallel_size, layout.num_microbatches
    group = layout.microbatch_group_size_per_vp_stage or stages
    per_round = layout.micro_batch_size * layout.data_parallel_size
    if not stages <= group <= count:
        raise InputError(
            f"microbatch_group_size_per_vp_stage is {group} with {stages} stages and {count} "
            f"micro-batches: it must lie between the two. Use a global_batch_size of at least "
            f"{max(group, stages) * per_round}, or another group size."
        )
    if 0 < count % group < stages:
        lower = count // group * group
        raise InputError(
            f"{count} micro-batches leave {count % group} for the last group of {group}, fewer "
            f"than the {stages} stages: use a global_batch_size of {lower * per_round} or "
            f"{(lower + group) * per_round}."
        )


def layout_text_holds_every_layer(job: Job) -> None:
    """A stated pipeline layout names the embedding, every layer and the loss, in whole stages."""
    layout, layers = job.layout, job.architecture.num_layers
    text = layout.pipeline_model_parallel_layout
    if text is None:
        return
    stages = stages_of(text)
    flat = "".join(stages)
    if len(stages) % layout.pipeline_model_parallel_size:
        raise InputError(
            f"pipeline_model_parallel_layout {text} has {len(stages)} stages, which is not a "
            f"multiple of pipeline_model_parallel_size {layout.pipeline_model_parallel_size}."
        )
    stated = layout.virtual_pipeline_model_parallel_size
    if stated is not None and stated != (virtual_stages(layout) or 1):
        raise InputError(
            f"pipeline_model_parallel_layout {text} has {len(stages)} stages, "
            f"virtual_pipeline_model_parallel_size {stated} wants "
            f"{stated * layout.pipeline_model_parallel_size}: remove the latter."
        )
    if not re.fullmatch(r"Et*L", flat) or flat.count("t") != layers:
        raise InputError(
            f"pipeline_model_parallel_layout {text} reads {flat}: it must be E (embedding), "
            f"{layers} times t (num_layers), then L (loss), with | between stages."
        )
    for name in (
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    ):
        if getattr(layout, name):
            raise InputError(f"pipeline_model_parallel_layout and {name} are both set: keep one.")


def uneven_stages_are_counted_once(job: Job) -> None:
    """A stage of its own size already says where embedding and loss stand."""
    layout = job.layout
    first, last = layout.decoder_first_pipeline_num_layers, layout.decoder_last_pipeline_num_layers
    if first is None and last is None:
        return
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        if getattr(layout, name):
            raise InputError(
                f"{name} cannot go with decoder_first_pipeline_num_layers or "
                f"decoder_last_pipeline_num_layers: remove {name}."
            )
    chunks = layout.virtual_pipeline_model_parallel_size or 1
    for where, count in (("first", first), ("last", last)):
        if count is not None and count % chunks:
            raise InputError(
                f"decoder_{where}_pipeline_num_layers {count} is not divisible by "
                f"virtual_pipeline_model_parallel_size {chunks}: use "
                f"{nearest_multiples(chunks, count)}."
            )


def positions_reach_the_sequence(job: Job) -> None:
    """There is a position for every token."""
    positions, length = job.architecture.max_position_embeddings, job.layout.seq_length
    if positions is not None and positions < length:
        raise InputError(
            f"max_position_embeddings {positions} is less than seq_length {length}: use a "
            f"seq_length of at most {positions}, or more positions."
        )


def recomputation_is_complete(job: Job) -> None:
    """Full recomputation needs its unit; saved activations can only be split over TP without SP."""
    layout = job.layout
    if layout.recompute_granularity == "full" and layout.recompute_num_layers is None:
        raise InputError(
            f"recompute_granularity full with recompute_method {layout.recompute_method} needs "
            f"recompute_num_layers: set it to 1 to recompute layer by layer."
        )
    if layout.distribute_saved_activations and (
        layout.tensor_model_parallel_size == 1 or layout.sequence_parallel
    ):
        raise InputError(
            "distribute_saved_activations needs tensor_model_parallel_size above 1 and no "
            "sequence_parallel, which already splits them: remove it."
        )


def recomputed_modules_exist(job: Job) -> None:
    """Selective recomputation names modules that this model has."""
    layout, architecture = job.layout, job.architecture
    if layout.recompute_granularity != "selective":
        return
    allowed = {"core_attn", "mlp", "layernorm"}
    if architecture.num_experts is not None:
        allowed.add("moe")
        if job.recipe.moe_grouped_gemm:
            allowed.add("moe_act")
        if architecture.moe_shared_expert_intermediate_size and (
            not job.recipe.moe_shared_expert_overlap
        ):
            allowed.add("shared_experts")
    for module in layout.recompute_modules:
        if module not in allowed:
            raise InputError(
                f"recompute_modules names {module}: this job can recompute "
                f"{', '.join(sorted(allowed))}."
            )


def activation_is_one(job: Job) -> None:
    """One activation function, and a fusion that exists for it."""
    architecture, recipe = job.architecture, job.recipe
    chosen = [
        name
        for name in ("swiglu", "geglu", "quick_geglu", "squared_relu")
        if getattr(architecture, name)
    ]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} are both set: an MLP has one activation.")
    if not recipe.bias_gelu_fusion:
        return
    if architecture.squared_relu:
        raise InputError(
            "bias_gelu_fusion has no kernel for squared_relu: --set bias_gelu_fusion=false."
        )
    if architecture.quick_geglu and not _every_layer_has_experts(job):
        raise InputError(
            "bias_gelu_fusion has no kernel for quick_geglu in dense layers (megatron-core 0.16.1 "
            "refuses it): --set bias_gelu_fusion=false."
        )


def optimizer_instances_divide(job: Job) -> None:
    """Partial distributed optimizers split the replicas evenly."""
    layout = job.layout
    count = layout.num_distributed_optimizer_instances
    if count == 1:
        return
    if not job.recipe.use_distributed_optimizer:
        raise InputError(
            f"num_distributed_optimizer_instances {count} needs use_distributed_optimizer: set it."
        )
    replicas = layout.data_parallel_size * layout.context_parallel_size
    if replicas % count:
        raise InputError(
            f"num_distributed_optimizer_instances {count} does not divide dp · cp = {replicas}: "
            f"use a divisor of {replicas}."
        )


def quantised_formats_are_one(job: Job) -> None:
    """fp8 and fp4 exclude each other; fp8 parameters are gathered by the distributed optimizer."""
    recipe = job.recipe
    if recipe.fp8 is not None and recipe.fp4 is not None:
        raise InputError("fp8 and fp4 are both set: keep one.")
    if recipe.fp8_param_gather and not (recipe.fp8 and recipe.use_distributed_optimizer):
        raise InputError("fp8_param_gather needs fp8 and use_distributed_optimizer: set both.")


def local_attention_splits_query_groups(job: Job) -> None:
    """Megatron-Core's own attention gives each tensor rank whole query groups."""
    tp, groups = job.layout.tensor_model_parallel_size, job.architecture.num_query_groups
    if groups % tp:
        raise InputError(
            f"num_query_groups {groups} is not divisible by tensor_model_parallel_size {tp}: "
            f"Megatron-Core's own attention cannot share a group between ranks (Transformer "
            f"Engine's can); use a tensor_model_parallel_size that divides {groups}."
        )


def local_experts_have_no_biases(job: Job) -> None:
    """Megatron-Core 0.16.1 adds an expert's bias in place to a view, which autograd refuses."""
    if job.architecture.num_experts is not None and job.architecture.add_bias_linear:
        raise InputError(
            "add_bias_linear in experts fails in megatron-core 0.16.1's own layers: "
            "--set add_bias_linear=false."
        )


def local_attention_sees_whole_sequence(job: Job) -> None:
    """Context parallelism is built into Transformer Engine's attention only."""
    if job.layout.context_parallel_size > 1:
        raise InputError(
            f"context_parallel_size is {job.layout.context_parallel_size}: only Transformer "
            f"Engine's attention splits the sequence, and it is not in use here. Use "
            f"--set context_parallel_size=1."
        )


def local_recomputation_keeps_outputs(job: Job) -> None:
    """`CheckpointWithoutOutput` takes fp8=False for fp8 being on, and calls Transformer Engine."""
    if job.layout.recompute_granularity != "selective":
        return
    for module in job.layout.recompute_modules:
        if module in ("layernorm", "moe_act"):
            raise InputError(
                f"recompute_modules names {module}, which fails in megatron-core 0.16.1 without "
                f"Transformer Engine: remove it from the list."
            )


def norms_know_sequence_parallel(job: Job) -> None:
    """On CUDA, torch's own norms refuse sequence parallelism (the CPU shim teaches them)."""
    if job.layout.sequence_parallel:
        raise InputError(
            "sequence_parallel with Megatron-Core's own layers on CUDA needs Apex's norms, and "
            "Apex is not installed: install it or Transformer Engine, or "
            "--set sequence_parallel=false."
        )


def _every_layer_has_experts(job: Job) -> bool:
    frequency = job.architecture.moe_layer_freq
    if job.architecture.num_experts is None:
        return False
    return frequency == 1 if isinstance(frequency, int) else all(frequency)


RULES = (
    it_trains,
    layout_text_holds_every_layer,
    interleaving_with_two_stages,
    interleaving_has_enough_micro_batches,
    uneven_stages_are_counted_once,
    positions_reach_the_sequence,
    recomputation_is_complete,
    recomputed_modules_exist,
    activation_is_one,
    optimizer_instances_divide,
    quantised_formats_are_one,
)
LOCAL_RULES = (
    local_experts_have_no_biases,
    local_attention_splits_query_groups,
    local_attention_sees_whole_sequence,
    local_recomputation_keeps_outputs,
)
