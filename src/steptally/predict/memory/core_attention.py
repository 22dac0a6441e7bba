"""Activations of softmax(QKᵀ)V: flash or unfused, and under context parallelism.

Sources: `DotProductAttention` and `FusedScaleMaskSoftmax` of megatron-core 0.16.1; `FusedAttnFunc`
and the `AttnFuncWithCP…` functions of Transformer Engine 2.11.
"""

from __future__ import annotations

from typing import NamedTuple

from steptally.predict.count import Count
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import Operation, larger

NAME = "self_attention.core_attention"
# Longest row for which Megatron-Core has a fused softmax kernel (`is_kernel_available`).
FUSED_SOFTMAX_MAX_SEQUENCE = 4096


class AttentionTensors(NamedTuple):
    """Bytes of what core attention reads and writes, on one rank and micro-batch.

    `kept_inputs` is what Q, K and V keep alive: more than themselves where one is a view.
    `variables` is what the layer's own variables keep alive beside that while attention and the
    projection run forward: the QKV output, of which V is a view.
    """

    query: Count
    key: Count
    value: Count
    output: Count
    kept_inputs: Count
    variables: Count


class Extra(NamedTuple):
    """What context parallelism adds to an operation."""

    saved: Count
    forward: Count
    backward: Count


def flash_attention(dimensions: Dimensions, tensors: AttentionTensors) -> list[Operation]:
    """Flash (or cuDNN) attention: keeps Q, K, V and the log-sum-exp of each row, never the scores.

    Its output is kept by the operation that reads it. Backward sums dQ in fp32.
    """
    log_sum_exp = 4 * dimensions.heads * dimensions.tokens
    extra = context_parallel_extra(dimensions, tensors)
    gradients = tensors.query + tensors.key + tensors.value
    sum_of_query_gradient = tensors.query // dimensions.element * 4
    return [
        Operation(
            NAME,
            tensors.kept_inputs + log_sum_exp + extra.saved,
            tensors.output + tensors.variables + extra.forward,
            tensors.output + gradients + sum_of_query_gradient + extra.backward,
        )
    ]


def context_parallel_extra(dimensions: Dimensions, tensors: AttentionTensors) -> Extra:
    """What each way of context parallelism keeps or needs beside the local Q, K, V and output.

    `a2a` keeps the output before its all-to-all apart from that after it, and holds each tensor on
    both sides of it. `p2p` holds the keys and values of the whole ring and one output a step.
    `allgather` keeps the outputs of its two steps apart from the whole, and gathers K and V.
    """
    split = dimensions.cp > 1
    inputs = tensors.query + tensors.key + tensors.value
    ring = (tensors.key + tensors.value) * dimensions.cp
    kind = dimensions.layout.cp_comm_type
    if kind == "p2p":
        step = 4 * (tensors.key + tensors.value) + tensors.query
        return Extra(0, split * (ring + tensors.output * dimensions.cp), split * step)
    if kind == "allgather":
        return Extra(split * tensors.output, split * 2 * ring, split * 3 * ring)
    return Extra(split * tensors.output, split * inputs, split * (inputs + tensors.output))


def unfused_attention(dimensions: Dimensions, tensors: AttentionTensors) -> list[Operation]:
    """The whole [heads, s, s] matrix: scores, softmax, dropout, and the product with V.

    `tensors.key` and `tensors.value` are repeated for every query head, as Megatron-Core does. The
    scores stay alive in forward until attention returns; V's gradient waits for Q's and K's.
    """
    element, recipe = dimensions.element, dimensions.recipe
    pairs = dimensions.heads * dimensions.tokens * dimensions.layout.seq_length
    scores = pairs * element
    probabilities, softmax = softmax_operation(dimensions, pairs)
    dropped = recipe.attention_dropout > 0
    kept_probabilities = scores if dropped else probabilities
    alive = scores + tensors.variables
    new_buffer = scores if dimensions.transformer_engine else 0  # else a lasting one
    return [
        Operation(
            f"{NAME}.scores",
            tensors.kept_inputs - tensors.value,
            alive + new_buffer,
            scores + tensors.query + tensors.key + tensors.value,
        ),
        softmax._replace(
            forward=softmax.forward + alive + tensors.value,
            backward=softmax.backward + tensors.value,
        ),
        Operation(
            f"{NAME}.attention_dropout",
            pairs if dropped else 0,
            alive + tensors.value + (scores if dropped else 0),
            2 * scores + tensors.value,
        ),
        Operation(
            f"{NAME}.context",
            kept_probabilities + tensors.value,
            alive + 2 * tensors.output,
            tensors.output + scores + tensors.value,
        ),
    ]


def softmax_operation(dimensions: Dimensions, pairs: Count) -> tuple[Count, Operation]:
    """The softmax, and the bytes of probabilities that the product with V keeps beside its own.

    In 16 bits the fused kernel or torch keeps its output, which is also what the product reads. In
    fp32 (`attention_softmax_in_fp32`) it keeps that output, and the product a 16-bit copy. Where
    torch masks a view of the scores in place, backward makes four copies of them (CopySlices), when
    the softmax's own are gone. Each layer makes its own causal mask, [s, s] bytes by way of two in
    fp32, and keeps it.
    """
    element, recipe = dimensions.element, dimensions.recipe
    name = f"{NAME}.softmax"
    scores = pairs * element
    if has_fused_softmax(dimensions):
        return 0, Operation(name, scores, 0, scores)
    mask = dimensions.layout.seq_length**2
    if recipe.attention_softmax_in_fp32 and element == 2:
        peaks = (scores + larger(4 * pairs, 8 * mask), 8 * pairs)
        return scores, Operation(name, 4 * pairs + mask, *peaks)
    return 0, Operation(name, scores + mask, 8 * mask, 3 * scores)


def has_fused_softmax(dimensions: Dimensions) -> bool:
    """Whether Megatron's fused softmax kernel takes this job: 16 bits, rows of 16 to 4096."""
    length = dimensions.layout.seq_length
    return (
        dimensions.recipe.masked_softmax_fusion
        and dimensions.element == 2
        and 16 < length <= FUSED_SOFTMAX_MAX_SEQUENCE
        and length % 4 == 0
    )
