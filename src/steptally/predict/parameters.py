"""Parameters of the whole model, exact, as Megatron-Core builds it.

Norms and biases count; tied embeddings count once; the vocabulary is padded. `active` is what one
token passes through: of the routed experts, `moe_router_topk`.
"""

from __future__ import annotations

from typing import NamedTuple

from steptally.job import Architecture, Job
from steptally.predict.layer_parameters import Tensor, layer_parameters, whole
from steptally.predict.layers import count_layer_kinds, mtp_layer_kinds
from steptally.predict.parameter_counts import linear_parameters, norm_parameters
from steptally.tally import ParametersRow

# The rows that hold a vector for each token of the vocabulary or each position.
EMBEDDINGS = ("embedding.word_embeddings", "embedding.position_embeddings", "output_layer")


class ModelSize(NamedTuple):
    """Sums over the parameters of a model."""

    total: int
    active: int
    embedding: int


def model_size(job: Job) -> ModelSize:
    """Parameters in all, active for one token, and those that are embeddings or LM head."""
    rows = predict_parameters(job)
    return ModelSize(
        total=sum(row.count for row in rows),
        active=sum(row.active for row in rows),
        embedding=sum(row.count for row in rows if row.name in EMBEDDINGS),
    )


def predict_parameters(job: Job) -> list[ParametersRow]:
    """Parameters by kind of tensor, in Megatron-Core's module names, over the whole model.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings(
    ...     {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
    ...      "vocab_size": 128, "position_embedding_type": "rope"})
    >>> sum(row.count for row in predict_parameters(job))
    58304
    """
    architecture = job.architecture
    tensors = _embeddings(job)
    for kind, layers in count_layer_kinds(architecture).items():
        tensors += [tensor.times(layers) for tensor in layer_parameters(architecture, kind)]
    tensors.append(
        whole("final_layernorm", norm_parameters(architecture, architecture.hidden_size))
    )
    tensors += _mtp(job)
    if architecture.untie_embeddings_and_output_weights:
        tensors.append(whole("output_layer", job.padded_vocab_size * architecture.hidden_size))
    return _rows(tensors)


def _rows(tensors: list[Tensor]) -> list[ParametersRow]:
    totals: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        count, active = totals.get(tensor.name, (0, 0))
        totals[tensor.name] = (count + tensor.size, active + tensor.active)
    return [
        ParametersRow(name=name, count=count, active=active)
        for name, (count, active) in totals.items()
    ]


def _embeddings(job: Job) -> list[Tensor]:
    architecture = job.architecture
    found = [whole("embedding.word_embeddings", job.padded_vocab_size * architecture.hidden_size)]
    if architecture.position_embedding_type == "learned_absolute":
        length = architecture.max_position_embeddings or job.layout.seq_length
        found.append(whole("embedding.position_embeddings", length * architecture.hidden_size))
    return found


def _mtp(job: Job) -> list[Tensor]:
    """Multi-token prediction: two norms, the projection of both inputs, a layer, a norm."""
    architecture: Architecture = job.architecture
    hidden, tensors = architecture.hidden_size, []
    for kind in mtp_layer_kinds(job):
        norm = norm_parameters(architecture, hidden)
        tensors += [
            whole("mtp.norms", 3 * norm),
            whole("mtp.eh_proj", linear_parameters(2 * hidden, hidden, bias=False)),
        ]
        tensors += [
            tensor._replace(name=f"mtp.{tensor.name}")
            for tensor in layer_parameters(architecture, kind)
        ]
    return tensors
