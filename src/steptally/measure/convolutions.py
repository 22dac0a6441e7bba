"""A convolution's products: each output position is a product of a patch and the kernel.

Schemas in torch's native_functions.yaml: `convolution(input, weight, bias, stride, padding,
dilation, transposed, output_padding, groups)` and `convolution_backward(grad_output, input, weight,
bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from steptally.measure.product import Product, product


def convolution(shapes: Sequence[list[int]], values: Sequence[str]) -> list[Product]:
    """The one product of a forward convolution."""
    data, kernel = shapes[0], shapes[1]
    stride, padding, dilation = (_integers(values[place]) for place in (3, 4, 5))
    if values[6] == "True":
        return [_product(data[0] * math.prod(data[2:]), kernel, int(values[8]))]
    # The size of each output axis, as torch.nn.Conv2d documents it.
    outputs = [
        (size + 2 * pad - spread * (extent - 1) - 1) // step + 1
        for size, extent, step, pad, spread in zip(
            data[2:], kernel[2:], stride, padding, dilation, strict=True
        )
    ]
    return [_product(data[0] * math.prod(outputs), kernel, int(values[8]))]


def convolution_backward(shapes: Sequence[list[int]], values: Sequence[str]) -> list[Product]:
    """One product for the gradient of the input and one for the weight's, as asked for."""
    gradient, data, kernel = shapes[0], shapes[1], shapes[2]
    driving = data if values[7] == "True" else gradient
    one = _product(driving[0] * math.prod(driving[2:]), kernel, int(values[9]))
    of_input, of_weight = ast.literal_eval(values[10])[:2]
    return [one] * (bool(of_input) + bool(of_weight))


def _product(positions: int, kernel: list[int], groups: int) -> Product:
    """`kernel` is [outputs, inputs / groups, extents…], or its transpose, to the same FLOPs."""
    return product(positions, kernel[0] // groups, math.prod(kernel[1:]), groups)


def _integers(text: str) -> list[int]:
    return [int(number) for number in ast.literal_eval(text)]
