"""Activations of a Mamba-2 layer, by operation.

Source: `MambaMixer._ssm_training` of megatron-core 0.16.1, whose
`mamba_split_conv1d_scan_combined` (mamba_ssm) keeps its input and its output, and makes the
chunk states again in backward.
"""

from __future__ import annotations

from steptally.job import Architecture
from steptally.predict.memory.attention import bias_dropout_add
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import (
    Operation,
    column_linear,
    held,
    norm,
    row_linear,
)

EXPANSION = 2  # channels of the scan over hidden, where mamba_num_heads does not say otherwise
CHUNK_TOKENS = 128  # tokens of a chunk of the scan (`chunk_size` of MambaMixer)


def mamba_operations(dimensions: Dimensions) -> list[Operation]:
    """Norm, input projection, convolution and scan, gated norm, output projection, residual add."""
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, element = architecture.hidden_size, dimensions.element
    inner = inner_channels(architecture) // tp
    projected = projection_width(architecture) // tp
    scanned = dimensions.tokens * inner * element
    states = dimensions.tokens * inner * architecture.mamba_state_dim * 4 // CHUNK_TOKENS
    branch = [
        norm(dimensions, "norm", dimensions.own_tokens, hidden),
        column_linear(dimensions, "mixer.in_proj", hidden, projected),
        Operation(
            "mixer.scan",
            dimensions.tokens * projected * element + scanned,
            states,
            dimensions.tokens * projected * element + 2 * states,
        ),
        norm(dimensions, "mixer.norm", dimensions.tokens, inner),
        row_linear(dimensions, "mixer.out_proj", inner, hidden),
    ]
    return [
        *held(branch, dimensions.hidden_bytes),
        bias_dropout_add(dimensions, "mamba_bda"),
    ]


def inner_channels(architecture: Architecture) -> int:
    """Channels of the scan, over all ranks: heads · head width, or twice the hidden size."""
    if architecture.mamba_num_heads is not None:
        return architecture.mamba_num_heads * architecture.mamba_head_dim
    return EXPANSION * architecture.hidden_size


def projection_width(architecture: Architecture) -> int:
    """Outputs of the input projection: gate, input, B, C and time step of every head."""
    inner = inner_channels(architecture)
    groups = 2 * architecture.mamba_num_groups * architecture.mamba_state_dim
    return 2 * inner + groups + inner // architecture.mamba_head_dim
