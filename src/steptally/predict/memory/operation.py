"""One operation of a layer and the memory that it needs, and what a chain of them adds up to.

A micro-batch's activations are what operations of the forward pass keep for the backward pass.
Autograd frees what an operation saved as soon as its own backward has run, so while operation i
runs forward or backward, exactly what operations 1…i saved is alive, plus what i itself needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from steptally.predict.count import Count
from steptally.predict.memory.dimensions import Dimensions


class Operation(NamedTuple):
    """What one operation allocates, in bytes of one rank and micro-batch.

    `saved` lives from its forward to its backward. `forward` and `backward` live only while it
    runs: inputs and outputs that no operation saves, gathered tensors, gradients, weight gradients
    that are not accumulated in place. `name` is Megatron-Core's module path inside the layer.
    """

    name: str
    saved: Count
    forward: Count
    backward: Count


class Footprint(NamedTuple):
    """A chain of operations: bytes that it keeps after forward, and its peaks above what was there.

    `forward_peak` and `backward_peak` include `saved` as far as it is alive at that moment.
    """

    saved: Count
    forward_peak: Count
    backward_peak: Count


def footprint(operations: Iterable[Operation]) -> Footprint:
    """Run a chain forward and back: the peaks are over its operations.

    >>> footprint([Operation("a", 10, 5, 8), Operation("b", 20, 1, 2)])
    Footprint(saved=30, forward_peak=31, backward_peak=32)
    """
    saved, forward_peak, backward_peak = 0, 0, 0
    for operation in operations:
        saved = saved + operation.saved
        forward_peak = larger(forward_peak, saved + operation.forward)
        backward_peak = larger(backward_peak, saved + operation.backward)
    return Footprint(saved=saved, forward_peak=forward_peak, backward_peak=backward_peak)


def larger(left: Count, right: Count) -> Count:
    """The maximum of two ints, or of two arrays entry by entry."""
    if type(left) is int and type(right) is int:
        return left if left > right else right
    import numpy  # only a search over arrays comes here

    return numpy.maximum(left, right)


def held(operations: Sequence[Operation], gradient: Count) -> list[Operation]:
    """A branch beside which `gradient` stays alive in backward: that of the residual connection."""
    return [
        Operation(name, saved, forward, backward + gradient)
        for name, saved, forward, backward in operations
    ]


def column_linear(
    dimensions: Dimensions, name: str, inputs: int, outputs: Count, *, saves_input: bool = True
) -> Operation:
    """A linear layer split by output: [·, inputs] → [·, outputs], `outputs` on this rank.

    Keeps its input (before the gather of sequence parallelism, which backward repeats). Backward
    holds the output's gradient, the gathered input, the whole input gradient and its
    reduce-scattered part. Source: Transformer Engine 2.11 `_Linear`; Megatron-Core's
    `LinearWithGradAccumulationAndAsyncCommunication`, which gathers into a lasting buffer instead.
    """
    element = dimensions.element
    own_input = dimensions.own_tokens * inputs
    gathered = dimensions.tokens * inputs * element
    output = dimensions.tokens * outputs * element
    into_new_memory = dimensions.gathers * dimensions.transformer_engine
    gradients = output + gathered + dimensions.gathers * own_input * element
    return Operation(
        name,
        dimensions.linear_input_bytes(own_input) if saves_input else 0,
        output + into_new_memory * gathered,
        gradients + into_new_memory * gathered + weight_gradient(dimensions, inputs, outputs),
    )


def row_linear(dimensions: Dimensions, name: str, inputs: Count, outputs: int) -> Operation:
    """A linear layer split by input: [·, inputs on this rank] → [·, outputs], summed over ranks.

    Backward holds the output's gradient, gathered where sequence parallelism scattered it, and the
    input's. The gradient that arrives is the residual connection's and is counted there.
    """
    element = dimensions.element
    whole = dimensions.tokens * outputs * element
    own = dimensions.own_tokens * outputs * element
    return Operation(
        name,
        dimensions.linear_input_bytes(dimensions.tokens * inputs),
        whole + dimensions.gathers * own,
        dimensions.gathers * whole
        + dimensions.tokens * inputs * element
        + weight_gradient(dimensions, inputs, outputs),
    )


def weight_gradient(dimensions: Dimensions, inputs: Count, outputs: Count) -> Count:
    """A weight's gradient on its way to the gradient buffer; 0 where the product adds to it.

    With `gradient_accumulation_fusion` Megatron-Core still makes a dummy gradient, to trigger its
    hooks: Transformer Engine keeps one for each shape (`memory.lasting`), Megatron-Core's own
    layers make one each time.
    """
    fused = dimensions.recipe.gradient_accumulation_fusion and dimensions.transformer_engine
    return 0 if fused else inputs * outputs * dimensions.element


def norm(dimensions: Dimensions, name: str, rows: Count, width: Count) -> Operation:
    """A LayerNorm or RMSNorm: keeps its input and 1/σ (and μ) of each row in fp32.

    Its output is kept by the operation that reads it.
    """
    vector = rows * width * dimensions.element
    statistics = 8 if dimensions.architecture.normalization == "LayerNorm" else 4
    return Operation(name, vector + rows * statistics, vector, 2 * vector)
