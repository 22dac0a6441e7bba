"""How many parameters the smallest parts of a model have."""

from __future__ import annotations

from steptally.job import Architecture


def linear_parameters(inputs: int, outputs: int, bias: bool) -> int:
    """i·o weights, and o biases where there are any.

    >>> linear_parameters(64, 256, bias=True)
    16640
    """
    return inputs * outputs + (outputs if bias else 0)


def norm_parameters(architecture: Architecture, channels: int) -> int:
    """A gain for each channel, and a shift where the norm is a LayerNorm; L2Norm has neither."""
    per_channel = {"LayerNorm": 2, "RMSNorm": 1, "L2Norm": 0}[architecture.normalization]
    return per_channel * channels
