"""A second count of a model's parameters, written apart from `steptally.predict.parameters`.

It follows the papers (attention, gated MLP, MLA, experts, Mamba-2), for tests of settings.
"""

from steptally.job import Job


def count_parameters(job: Job) -> int:
    """All parameters but those of multi-token-prediction modules."""
    shape = job.architecture
    norm = {"LayerNorm": 2, "RMSNorm": 1}[shape.normalization] * shape.hidden_size
    total = job.padded_vocab_size * shape.hidden_size + norm
    if shape.untie_embeddings_and_output_weights:
        total += job.padded_vocab_size * shape.hidden_size
    if shape.position_embedding_type == "learned_absolute":
        total += shape.max_position_embeddings * shape.hidden_size
    if shape.hybrid_override_pattern:
        parts = {
            "M": lambda: norm + _mamba(shape),
            "*": lambda: norm + _attention(shape),
            "-": lambda: norm + _mlp(shape, shape.ffn_hidden_size),
            "E": lambda: norm + _experts(shape),
        }
        return total + sum(parts[letter]() for letter in shape.hybrid_override_pattern)
    norms = norm * (4 if shape.post_layer_norms else 2)
    frequency = shape.moe_layer_freq
    for layer in range(shape.num_layers):
        with_experts = shape.num_experts is not None and (
            layer % frequency == 0 if isinstance(frequency, int) else frequency[layer]
        )
        mlp = _experts(shape) if with_experts else _mlp(shape, shape.ffn_hidden_size)
        total += norms + _attention(shape) + mlp
    return total


def _linear(inputs, outputs, bias):
    return inputs * outputs + (outputs if bias else 0)


def _attention(shape):
    hidden, heads = shape.hidden_size, shape.num_attention_heads
    if shape.multi_latent_attention:
        per_query = shape.qk_head_dim + shape.qk_pos_emb_head_dim
        query = hidden * heads * per_query
        if shape.q_lora_rank:
            query = shape.q_lora_rank * (hidden + 1 + heads * per_query)
        latent = hidden * (shape.kv_lora_rank + shape.qk_pos_emb_head_dim) + shape.kv_lora_rank
        up = shape.kv_lora_rank * heads * (shape.qk_head_dim + shape.v_head_dim)
        return query + latent + up + heads * shape.v_head_dim * hidden
    queries, keys = shape.query_projection_size, shape.kv_channels * shape.num_query_groups
    bias = shape.add_bias_linear
    total = _linear(hidden, queries + 2 * keys, bias or shape.add_qkv_bias)
    total += _linear(queries, hidden, bias)
    total += 2 * shape.kv_channels if shape.qk_layernorm else 0
    return total + (heads if shape.softmax_type == "learnable" else 0)


def _mlp(shape, width):
    up = 2 * width if shape.gated_linear_unit else width
    bias = shape.add_bias_linear
    return _linear(shape.hidden_size, up, bias) + _linear(width, shape.hidden_size, bias)


def _experts(shape):
    total = _linear(shape.hidden_size, shape.num_experts, shape.add_bias_linear)
    total += shape.num_experts * _mlp(shape, shape.moe_ffn_hidden_size)
    if shape.moe_shared_expert_intermediate_size:
        total += _mlp(shape, shape.moe_shared_expert_intermediate_size)
    return total + (shape.hidden_size if shape.moe_shared_expert_gate else 0)


def _mamba(shape):
    inner = shape.mamba_num_heads * shape.mamba_head_dim
    states = 2 * shape.mamba_num_groups * shape.mamba_state_dim
    into = shape.hidden_size * (2 * inner + states + shape.mamba_num_heads)
    convolution = (inner + states) * 4 + (inner + states)
    return into + convolution + 3 * shape.mamba_num_heads + inner + inner * shape.hidden_size
