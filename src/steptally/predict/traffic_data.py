"""What one step moves after the last backward: gradients, parameters, norms, the loss.

Sources, megatron-core 0.16.1: distributed/param_and_grad_buffer.py and finalize_model_grads.py,
optimizer/optimizer.py and clip_grads.py; the loss: train_step of Megatron-LM's training.py.
"""

from __future__ import annotations

from steptally.job.job import Job
from steptally.predict.buckets import BucketGroup, chunk_buckets, data_parallel_shards
from steptally.predict.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    DATA,
    EMBEDDING,
    EXPERT_DATA,
    GRADIENTS,
    LOGGING,
    MODEL,
    OPTIMIZER,
    REDUCE_SCATTER,
    TENSOR,
    Collective,
)
from steptally.predict.layers import layer_kinds
from steptally.predict.precision import gradient_dtype
from steptally.predict.ranks import coordinates, group_ranks
from steptally.predict.shards import stage_shards
from steptally.predict.stages import chunks_of_stage

# Groups with several distributed optimizer instances: inside one, and across them.
INSIDE = "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"
INSIDE_EXPERT = "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0"
ACROSS = "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1"
INSTANCE = "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"
EXPERT_MODEL = "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"


def step_collectives(job: Job, rank: int) -> list[Collective]:
    """Collectives of one rank that happen once a step, in their order."""
    pp = coordinates(job.layout, rank).pp
    return [
        *_gradient_collectives(job, pp),
        *_replicated_gradients(job, pp),
        *_embedding_gradients(job, rank),
        *_gradient_statistics(job),
        *_parameter_collectives(job, pp),
        *_loss_report(job, pp),
    ]


def rank_buckets(job: Job, pp: int, *, expert: bool) -> list[BucketGroup]:
    """The bucket groups of every chunk of a stage, in the order of chunks."""
    groups = []
    for chunk, shards in zip(chunks_of_stage(job, pp), stage_shards(job, pp), strict=True):
        groups += chunk_buckets(job, shards, pp=pp, vpp=chunk.vpp, expert=expert)
    return groups


def _data_group(job: Job, *, expert: bool) -> str:
    if job.layout.num_distributed_optimizer_instances > 1:
        return INSIDE_EXPERT if expert else INSIDE
    return EXPERT_DATA if expert else DATA


def _gradient_collectives(job: Job, pp: int) -> list[Collective]:
    """One reduce-scatter a bucket with the distributed optimizer, else an all-reduce."""
    sharded, dtype = job.recipe.use_distributed_optimizer, gradient_dtype(job)
    found = []
    for expert in (False, True):
        what = "expert gradients" if expert else "gradients"
        groups = rank_buckets(job, pp, expert=expert)
        for number, bucket in enumerate(groups, start=1):
            found.append(
                Collective(
                    name=f"{what}, bucket {number} of {len(groups)}",
                    group=_data_group(job, expert=expert),
                    collective=REDUCE_SCATTER if sharded else ALL_REDUCE,
                    phase=GRADIENTS,
                    elements=bucket.elements,
                    dtype=dtype,
                    flag="overlap_grad_reduce",
                )
            )
            if job.layout.num_distributed_optimizer_instances > 1:
                shards = data_parallel_shards(job, expert=expert)
                found.append(_across_instances(what, bucket.elements // shards, dtype))
    return found


def _across_instances(what: str, elements: int, dtype: str) -> Collective:
    return Collective(
        name=f"{what}, shard of a bucket over optimizer instances",
        group=ACROSS,
        collective=ALL_REDUCE,
        phase=GRADIENTS,
        elements=elements,
        dtype=dtype,
        flag="overlap_grad_reduce",
    )


def _parameter_collectives(job: Job, pp: int) -> list[Collective]:
    """One all-gather a bucket of the parameters that the distributed optimizer updated."""
    if not job.recipe.use_distributed_optimizer:
        return []
    # Each optimizer gathers all parameters after its own update, so that with one for the experts
    # everything moves twice; overlapped with the next forward, it moves once.
    calls = 2 if has_expert_optimizer(job) and not job.recipe.overlap_param_gather else 1
    found = []
    for expert in (False, True):
        what = "expert parameters" if expert else "parameters"
        groups = rank_buckets(job, pp, expert=expert)
        for number, bucket in enumerate(groups, start=1):
            dtypes = {part.parameter_dtype for part in bucket.buckets}
            one = dtypes.pop() if len(dtypes) == 1 else "fp8"  # mixed: counted in bytes
            elements = bucket.elements if one != "fp8" else bucket.parameter_bytes()
            found.append(
                Collective(
                    name=f"{what}, bucket {number} of {len(groups)}",
                    group=_data_group(job, expert=expert),
                    collective=ALL_GATHER,
                    phase=OPTIMIZER,
                    elements=elements,
                    dtype=one,
                    calls=calls,
                    flag="overlap_param_gather",
                )
            )
    return found


def _replicated_gradients(job: Job, pp: int) -> list[Collective]:
    """Gradients of what all tensor parallel ranks hold whole but feed with parts of the sequence.

    Norms, biases of row-parallel layers, routers; the norms of Q and K also without SP, since each
    rank feeds them with its own heads.
    """
    layout = job.layout
    if layout.tensor_model_parallel_size == 1:
        return []
    elements = sum(
        shard.elements
        for shards in stage_shards(job, pp)
        for shard in shards
        if shard.sequence_parallel
        or (job.architecture.qk_layernorm and _norm_of_queries_or_keys(shard.name))
    )
    if not elements:
        return []
    return [
        Collective(
            name="gradients of norms and other replicated parameters",
            group=TENSOR,
            collective=ALL_REDUCE,
            phase=GRADIENTS,
            elements=elements,
            dtype=gradient_dtype(job),
        )
    ]


def _norm_of_queries_or_keys(name: str) -> bool:
    return "q_layernorm" in name or "k_layernorm" in name


def _embedding_gradients(job: Job, rank: int) -> list[Collective]:
    """The word embedding's gradient, summed over the stages that hold a copy."""
    architecture = job.architecture
    shared = not architecture.untie_embeddings_and_output_weights or architecture.mtp_num_layers
    if not shared or len(group_ranks(job, EMBEDDING, rank)) < 2:
        return []
    rows = job.padded_vocab_size // job.layout.tensor_model_parallel_size
    return [
        Collective(
            name="word embedding gradient",
            group=EMBEDDING,
            collective=ALL_REDUCE,
            phase=GRADIENTS,
            elements=rows * architecture.hidden_size,
            dtype=gradient_dtype(job),
        )
    ]


def _gradient_statistics(job: Job) -> list[Collective]:
    """Loss-scale overflow (fp16) and the gradient norm: one fp32 number each, per optimizer.

    Experts that are reduced apart have an optimizer of their own; with the distributed optimizer
    both share one norm.
    """
    recipe, apart = job.recipe, has_expert_optimizer(job)
    if recipe.use_distributed_optimizer:
        groups = [INSTANCE, INSTANCE] if apart else [INSTANCE]
        norms = groups[:1]
    else:
        groups = norms = [MODEL, EXPERT_MODEL] if apart else [MODEL]
    overflow = groups if recipe.fp16 else []
    return [
        Collective(
            name=name,
            group=group,
            collective=ALL_REDUCE,
            phase=OPTIMIZER,
            elements=1,
            dtype="fp32",
        )
        for name, chosen in (("found_inf", overflow), ("gradient norm", norms))
        for group in chosen
    ]


def has_expert_optimizer(job: Job) -> bool:
    """Whether experts are reduced apart and so have an optimizer of their own, on every rank."""
    experts = any(kind.mlp == "moe" for kind in layer_kinds(job))
    return experts and job.layout.expert_model_parallel_size > 1


def _loss_report(job: Job, pp: int) -> list[Collective]:
    """Sum of losses and of tokens, for the log, on the last stage."""
    if pp != job.layout.pipeline_model_parallel_size - 1:
        return []
    return [
        Collective(
            name="loss and number of tokens",
            group=DATA,
            collective=ALL_REDUCE,
            phase=LOGGING,
            elements=2,
            dtype="fp32",
        )
    ]
