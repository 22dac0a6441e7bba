"""Parameters of the whole model, exact, as Megatron-Core builds it.

Norms and biases count; tied embeddings count once; the vocabulary is padded. `active` is what one
token passes through: of the routed experts, `moe_router_topk`.
"""

from __future__ import annotations

from steptally.job import Architecture, Job
from steptally.predict.layers import LayerKind, count_layer_kinds
from steptally.tally import ParametersRow

# The rows that hold a vector for each token of the vocabulary or each position.
EMBEDDINGS = ("embedding.word_embeddings", "embedding.position_embeddings", "output_layer")


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
    totals: dict[str, tuple[int, int]] = dict(_embeddings(job))
    for kind, layers in count_layer_kinds(architecture).items():
        for name, count, active in _layer(architecture, kind):
            total, total_active = totals.get(name, (0, 0))
            totals[name] = (total + layers * count, total_active + layers * active)
    norm = norm_parameters(architecture, architecture.hidden_size)
    totals["final_layernorm"] = (norm, norm)
    if architecture.untie_embeddings_and_output_weights:
        head = job.padded_vocab_size * architecture.hidden_size
        totals["output_layer"] = (head, head)
    return [
        ParametersRow(name=name, count=count, active=active)
        for name, (count, active) in totals.items()
    ]


def linear_parameters(inputs: int, outputs: int, bias: bool) -> int:
    """i·o weights, and o biases where there are any."""
    return inputs * outputs + (outputs if bias else 0)


def norm_parameters(architecture: Architecture, channels: int) -> int:
    """A gain for each channel, and a shift where the norm is a LayerNorm; L2Norm has neither."""
    per_channel = {"LayerNorm": 2, "RMSNorm": 1, "L2Norm": 0}[architecture.normalization]
    return per_channel * channels


def _embeddings(job: Job) -> dict[str, tuple[int, int]]:
    architecture = job.architecture
    words = job.padded_vocab_size * architecture.hidden_size
    found = {"embedding.word_embeddings": (words, words)}
    if architecture.position_embedding_type == "learned_absolute":
        length = architecture.max_position_embeddings or job.layout.seq_length
        positions = length * architecture.hidden_size
        found["embedding.position_embeddings"] = (positions, positions)
    return found


def _layer(architecture: Architecture, kind: LayerKind) -> list[tuple[str, int, int]]:
    """(name, parameters, active parameters) of one layer's tensors."""
    rows = [*_attention(architecture), *_dense_mlp(architecture)]
    return [(name, count, count) for name, count in rows]


def _attention(architecture: Architecture) -> list[tuple[str, int]]:
    hidden, channels = architecture.hidden_size, architecture.kv_channels
    queries = architecture.query_projection_size
    outputs = queries + 2 * channels * architecture.num_query_groups
    if architecture.attention_output_gate:
        outputs += queries
    qkv_bias = architecture.add_bias_linear or architecture.add_qkv_bias
    rows = [
        ("input_layernorm", norm_parameters(architecture, hidden)),
        ("linear_qkv", linear_parameters(hidden, outputs, qkv_bias)),
        ("linear_proj", linear_parameters(queries, hidden, architecture.add_bias_linear)),
    ]
    if architecture.qk_layernorm:
        rows.append(("q_layernorm", norm_parameters(architecture, channels)))
        rows.append(("k_layernorm", norm_parameters(architecture, channels)))
    return rows


def _dense_mlp(architecture: Architecture) -> list[tuple[str, int]]:
    hidden, width = architecture.hidden_size, architecture.ffn_hidden_size
    bias = architecture.add_bias_linear
    up = 2 * width if architecture.gated_linear_unit else width
    return [
        ("pre_mlp_layernorm", norm_parameters(architecture, hidden)),
        ("linear_fc1", linear_parameters(hidden, up, bias)),
        ("linear_fc2", linear_parameters(width, hidden, bias)),
    ]
