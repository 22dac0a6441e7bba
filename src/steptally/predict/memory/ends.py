"""Activations outside the layers: embedding, final norm, LM head, loss, multi-token prediction.

Sources: `LanguageModelEmbedding`, `GPTModel._postprocess`, `MultiTokenPredictionLayer` and the two
`_VocabParallelCrossEntropy` of megatron-core 0.16.1; `CrossEntropyFunction` of Transformer
Engine 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptally.predict.count import Count
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import Operation, column_linear, norm

# tokens, labels, position ids (int64) and the loss mask (fp32) of one token of a micro-batch.
BATCH_BYTES_PER_TOKEN = 3 * 8 + 4


def embedding_operations(dimensions: Dimensions) -> list[Operation]:
    """Look up [tokens, hidden]; backward makes the table's whole gradient before adding it.

    Keeps the indices (int64). The output is the residual stream, which the first norm keeps.
    """
    architecture, element = dimensions.architecture, dimensions.element
    stream, gathered = dimensions.hidden_bytes, dimensions.gathered_hidden_bytes
    mask = stream // element if dimensions.recipe.hidden_dropout > 0 else 0
    table = dimensions.vocabulary * architecture.hidden_size * element
    return [
        Operation(
            "embedding.word_embeddings",
            dimensions.tokens * BATCH_BYTES_PER_TOKEN + mask,
            gathered + dimensions.gathers * stream,
            gathered + dimensions.gathers * stream + table,
        )
    ]


def final_norm_operations(dimensions: Dimensions) -> list[Operation]:
    """The norm after the last decoder layer."""
    hidden = dimensions.architecture.hidden_size
    return [norm(dimensions, "final_layernorm", dimensions.own_tokens, hidden)]


def output_layer(dimensions: Dimensions) -> list[Operation]:
    """The LM head, always Megatron-Core's own linear layer, and the loss."""
    head = column_linear(
        dimensions,
        "output_layer",
        dimensions.architecture.hidden_size,
        dimensions.vocabulary,
    )
    # It gathers into a lasting buffer, not into new memory; it is never in FP8.
    gather = dimensions.gathers * dimensions.transformer_engine * dimensions.gathered_hidden_bytes
    return [
        head._replace(
            saved=dimensions.hidden_bytes,
            forward=head.forward - gather,
            backward=head.backward - gather,
        ),
        cross_entropy(dimensions),
    ]


def cross_entropy(dimensions: Dimensions) -> Operation:
    """The loss on [tokens, vocabulary / tp].

    Megatron-Core's own keeps the softmax in fp32, made while the logits are still alive, and
    rounds its gradient to the logits' dtype beside it; fused or not. Transformer Engine's writes
    the gradient over the logits.
    """
    logits = dimensions.tokens * dimensions.vocabulary * dimensions.element
    if _loss_over_logits(dimensions):
        return Operation("loss", logits, 0, 0)
    softmax = dimensions.tokens * dimensions.vocabulary * 4
    beside = unsaved_logits(dimensions)
    return Operation("loss", softmax, beside, beside)


def unsaved_logits(dimensions: Dimensions) -> Count:
    """Bytes of logits that the loss does not keep; fp32 ones become the softmax in place."""
    if dimensions.element != 2 or _loss_over_logits(dimensions):
        return 0
    return dimensions.tokens * dimensions.vocabulary * dimensions.element


def _loss_over_logits(dimensions: Dimensions) -> bool:
    recipe = dimensions.recipe
    return recipe.cross_entropy_loss_fusion and recipe.cross_entropy_fusion_impl == "te"


def prediction_operations(dimensions: Dimensions, layer: Sequence[Operation]) -> list[Operation]:
    """One multi-token-prediction depth before its head: `layer` is its transformer layer."""
    architecture, element = dimensions.architecture, dimensions.element
    hidden = architecture.hidden_size
    table = dimensions.vocabulary * hidden * element
    stream = dimensions.hidden_bytes
    projection = column_linear(dimensions, "mtp.eh_proj", 2 * hidden, hidden // dimensions.tp)
    gathered: Count = dimensions.parallel * dimensions.gathered_hidden_bytes
    return [
        Operation("mtp.embedding", dimensions.tokens * 8, stream, stream + table),
        norm(dimensions, "mtp.enorm", dimensions.own_tokens, hidden),
        norm(dimensions, "mtp.hnorm", dimensions.own_tokens, hidden),
        projection._replace(
            forward=projection.forward + gathered, backward=projection.backward + gathered
        ),
        *layer,
        norm(dimensions, "mtp.final_layernorm", dimensions.own_tokens, hidden),
    ]
