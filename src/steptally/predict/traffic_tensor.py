"""What tensor and sequence parallelism move: per linear layer, embedding and loss.

With sequence parallelism (SP) activations between the parallel regions are cut along the sequence:
each column-parallel layer gathers its input, again in backward for its weight's gradient, and each
row-parallel layer scatters its output. Without SP both all-reduce whole activations instead.
Sources, megatron-core 0.16.1: tensor_parallel/layers.py, mappings.py, cross_entropy.py;
transformer/attention.py, multi_latent_attention.py, multi_token_prediction.py.
"""

from __future__ import annotations

from steptally.job.job import Job
from steptally.predict.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    BACKWARD,
    FORWARD,
    REDUCE_SCATTER,
    TENSOR,
    Collective,
    both_ways,
)
from steptally.predict.layers import LayerKind
from steptally.predict.linears import COLUMN, ROW, Linear, layer_linears, mtp_linear
from steptally.predict.microbatch import gathered_tokens
from steptally.predict.precision import uses_transformer_engine

# The layers whose collectives Transformer Engine's user buffers can split over their products.
USER_BUFFERS = frozenset(("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))


def layer_tensor_collectives(job: Job, kind: LayerKind) -> list[Collective]:
    """Tensor-parallel collectives of one layer and micro-batch, each phase apart."""
    if job.layout.tensor_model_parallel_size == 1:
        return []
    found = [c for linear in layer_linears(job, kind) for c in linear_collectives(job, linear)]
    if kind.mixer == "attention":
        found += _split_groups(job)
    if kind.mixer == "mla":
        found += _latent(job)
    return found


def linear_collectives(job: Job, linear: Linear) -> list[Collective]:
    """The collectives around one linear layer; none where tp does not cut it."""
    if linear.parallel == COLUMN:
        return _column(job, linear)
    return _row(job, linear) if linear.parallel == ROW else []


def _column(job: Job, linear: Linear) -> list[Collective]:
    size = linear.rows * linear.inputs
    if not job.layout.sequence_parallel:
        name = f"{linear.name} input gradient"
        return [_one(job, linear, name, ALL_REDUCE, BACKWARD, size, hidden=True)]
    name = f"{linear.name} input"
    gathered = _one(job, linear, name, ALL_GATHER, FORWARD, size)
    scattered = _one(job, linear, f"{name} gradient", REDUCE_SCATTER, BACKWARD, size, hidden=True)
    if linear.name.startswith("shared_experts.") and job.recipe.moe_shared_expert_overlap:
        # The overlapped shared experts keep what they gathered, beside the dispatcher.
        return [gathered, scattered]
    again = _one(job, linear, f"{name}, for wgrad", ALL_GATHER, BACKWARD, size, hidden=True)
    return [gathered, again, scattered]


def _row(job: Job, linear: Linear) -> list[Collective]:
    size = linear.rows * linear.outputs
    name = f"{linear.name} output"
    if not job.layout.sequence_parallel:
        return [_one(job, linear, name, ALL_REDUCE, FORWARD, size)]
    return [
        _one(job, linear, name, REDUCE_SCATTER, FORWARD, size),
        _one(job, linear, f"{name} gradient", ALL_GATHER, BACKWARD, size),
    ]


def _one(
    job: Job,
    linear: Linear,
    name: str,
    collective: str,
    phase: str,
    elements: int,
    *,
    hidden: bool = False,
) -> Collective:
    user_buffers = linear.name in USER_BUFFERS and uses_transformer_engine(job)
    return Collective(
        name=name,
        group=TENSOR,
        collective=collective,
        phase=phase,
        elements=elements,
        dtype=job.recipe.params_dtype,
        modules=linear.modules,
        flag="tp_comm_overlap" if user_buffers else None,
        # Issued beside dgrad or wgrad; CUDA_DEVICE_MAX_CONNECTIONS=1 keeps that order.
        hidden=hidden,
    )


def _split_groups(job: Job) -> list[Collective]:
    """With more tp ranks than query groups, all ranks gather Q, K, V and pick their heads."""
    architecture, layout = job.architecture, job.layout
    if architecture.num_query_groups >= layout.tensor_model_parallel_size:
        return []
    qkv = architecture.query_projection_size * (2 if architecture.attention_output_gate else 1)
    qkv += 2 * architecture.kv_channels * architecture.num_query_groups
    return both_ways(
        "linear_qkv output, fewer query groups than tp",
        TENSOR,
        ALL_GATHER,
        gathered_tokens(job) * qkv,
        job.recipe.params_dtype,
    )


def _latent(job: Job) -> list[Collective]:
    """MLA's compressed Q and KV, which every rank needs whole."""
    architecture, tokens = job.architecture, gathered_tokens(job)
    positions = architecture.qk_pos_emb_head_dim
    dtype = job.recipe.params_dtype
    if uses_transformer_engine(job):
        if not job.layout.sequence_parallel:
            return []
        return both_ways("k_pos_emb", TENSOR, ALL_GATHER, tokens * positions, dtype)
    compressed = [("kv_combined", architecture.kv_lora_rank + positions, architecture.kv_lora_rank)]
    if architecture.q_lora_rank is not None:
        compressed.append(("q_compressed", architecture.q_lora_rank, architecture.q_lora_rank))
    found = []
    for name, gathered, scattered in compressed:
        found += _gathered_then_scattered(job, name, tokens * gathered, tokens * scattered)
    return found


def _gathered_then_scattered(
    job: Job, name: str, gathered: int, scattered: int
) -> list[Collective]:
    """Columns gathered in forward; with SP the sequence is then cut, and gathered in backward."""
    forward = Collective(
        name=name,
        group=TENSOR,
        collective=ALL_GATHER,
        phase=FORWARD,
        elements=gathered,
        dtype=job.recipe.params_dtype,
    )
    if not job.layout.sequence_parallel:
        return [forward]
    backward = Collective(
        name=f"{name} gradient",
        group=TENSOR,
        collective=ALL_GATHER,
        phase=BACKWARD,
        elements=scattered,
        dtype=job.recipe.params_dtype,
    )
    return [forward, backward]


def embedding_collectives(job: Job) -> list[Collective]:
    """The word embedding's output, which each rank has for its part of the vocabulary."""
    if job.layout.tensor_model_parallel_size == 1:
        return []
    size = gathered_tokens(job) * job.architecture.hidden_size
    dtype = job.recipe.params_dtype
    learned = job.architecture.position_embedding_type == "learned_absolute"
    if job.layout.sequence_parallel and not learned:
        return both_ways("embedding output", TENSOR, REDUCE_SCATTER, size, dtype)
    forward = Collective(
        name="embedding output",
        group=TENSOR,
        collective=ALL_REDUCE,
        phase=FORWARD,
        elements=size,
        dtype=dtype,
    )
    if not job.layout.sequence_parallel:
        return [forward]
    backward = Collective(
        name="embedding output gradient",
        group=TENSOR,
        collective=ALL_GATHER,
        phase=BACKWARD,
        elements=size,
        dtype=dtype,
    )
    return [forward, backward]


def mtp_projection_collectives(job: Job) -> list[Collective]:
    """Multi-token prediction's projection: a column-parallel layer whose columns are gathered."""
    if job.layout.tensor_model_parallel_size == 1:
        return []
    size = gathered_tokens(job) * job.architecture.hidden_size
    return [
        *linear_collectives(job, mtp_linear(job)),
        *_gathered_then_scattered(job, "mtp.eh_proj output", size, size),
    ]


def loss_collectives(job: Job) -> list[Collective]:
    """The vocabulary-parallel cross entropy of one set of logits, in fp32.

    Maximum, predicted logit and sum of exponentials; Megatron's fused form joins the last two, and
    Transformer Engine's gathers all three at once.
    """
    if job.layout.tensor_model_parallel_size == 1:
        return []
    tokens, recipe = gathered_tokens(job), job.recipe
    maximum = _loss_part("maximum", ALL_REDUCE, tokens)
    if not recipe.cross_entropy_loss_fusion:
        predicted = _loss_part("predicted logit", ALL_REDUCE, tokens)
        return [maximum, predicted, _loss_part("sum of exponentials", ALL_REDUCE, tokens)]
    if recipe.cross_entropy_fusion_impl == "te":
        gathered = 3 * tokens * job.layout.tensor_model_parallel_size
        return [_loss_part("maximum, sum and predicted logit", ALL_GATHER, gathered)]
    both = _loss_part("predicted logit and sum of exponentials", ALL_REDUCE, 2 * tokens)
    return [maximum, both]


def _loss_part(name: str, collective: str, elements: int) -> Collective:
    return Collective(
        name=f"loss: {name}",
        group=TENSOR,
        collective=collective,
        phase=FORWARD,
        elements=elements,
        dtype="fp32",
    )
