"""Activations of a Mamba-2 layer, by operation.

Source: `MambaMixer._ssm_training` of megatron-core 0.16.1, whose
`mamba_split_conv1d_scan_combined` (mamba_ssm) keeps its input and its output, and makes the
chunk states again in backward.
"""

from __future__ import annotations

from steptally.job import Architecture
from steptally.predict.mamba_terms import (
    SCAN_CHUNK,
    mamba_convolution_channels,
    mamba_heads,
    mamba_inner_size,
)
from steptally.predict.memory.attention import bias_dropout_add
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import (
    Operation,
    column_linear,
    held,
    norm,
    row_linear,
)


def mamba_operations(dimensions: Dimensions) -> list[Operation]:
    """Norm, input projection, convolution and scan, gated norm, output projection, residual add."""
    architecture, tp = dimensions.architecture, dimensions.tp
    hidden, element = architecture.hidden_size, dimensions.element
    inner = mamba_inner_size(architecture) // tp
    projected = projection_width(architecture) // tp
    scanned = dimensions.tokens * inner * element
    states = dimensions.tokens * inner * architecture.mamba_state_dim * 4 // SCAN_CHUNK
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


def projection_width(architecture: Architecture) -> int:
    """Outputs of the input projection: gate, input, B, C and time step of every head."""
    inner = mamba_inner_size(architecture)
    return inner + mamba_convolution_channels(architecture) + mamba_heads(architecture)
