"""Activations of a dense MLP, by operation.

Source: `MLP` and the fused activations of megatron-core 0.16.1 (fusions/fused_bias_*.py).
"""

from __future__ import annotations

from steptally.predict.count import Count
from steptally.predict.memory.attention import bias_dropout_add, post_norm
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import (
    Operation,
    column_linear,
    held,
    norm,
    row_linear,
)


def mlp_operations(dimensions: Dimensions) -> list[Operation]:
    """Norm, up projection, activation, down projection, dropout and residual add."""
    hidden = dimensions.architecture.hidden_size
    branch = [
        norm(dimensions, "pre_mlp_layernorm", dimensions.own_tokens, hidden),
        *feed_forward(dimensions, "mlp", dimensions.ffn, saves_input=True),
        *post_norm(dimensions, "post_mlp_layernorm"),
    ]
    return [*held(branch, dimensions.hidden_bytes), bias_dropout_add(dimensions, "mlp_bda")]


def feed_forward(
    dimensions: Dimensions, name: str, width: Count, *, saves_input: bool
) -> list[Operation]:
    """hidden → width → hidden on every token of the tensor-parallel region; `width` a rank."""
    architecture = dimensions.architecture
    hidden = architecture.hidden_size
    up = 2 * width if architecture.gated_linear_unit else width
    return [
        column_linear(dimensions, f"{name}.linear_fc1", hidden, up, saves_input=saves_input),
        activation(dimensions, f"{name}.activation_func", dimensions.tokens, width),
        row_linear(dimensions, f"{name}.linear_fc2", width, hidden),
    ]


def activation(dimensions: Dimensions, name: str, rows: Count, width: Count) -> Operation:
    """The nonlinearity, [rows, up] → [rows, width]; the down projection keeps its output.

    Fused with the bias it keeps its input alone. Unfused, torch keeps what each factor needs: of
    SwiGLU the input, the σ-gated half and the other half plus its offset, of squared ReLU the
    ReLU's output only. The backward of a gate puts the two halves' gradients together.
    """
    architecture = dimensions.architecture
    unit = rows * width * dimensions.element
    if architecture.squared_relu:
        return Operation(name, unit, 2 * unit, 3 * unit)
    if not architecture.gated_linear_unit:
        return Operation(name, unit, unit, 2 * unit)
    if fuses_activation(dimensions):
        return Operation(name, 2 * unit, unit, 3 * unit)
    return Operation(name, 4 * unit, unit, 5 * unit)


def fuses_activation(dimensions: Dimensions) -> bool:
    """Whether bias and activation are one kernel: one flag for SwiGLU, one for all others."""
    recipe = dimensions.recipe
    if dimensions.architecture.swiglu:
        return recipe.bias_swiglu_fusion
    return recipe.bias_gelu_fusion
