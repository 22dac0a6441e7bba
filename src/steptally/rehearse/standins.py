"""Portable modules in place of Transformer Engine's and Apex's, where Megatron-Core names them.

Each makes the same products and collectives as what it stands for; what it keeps in memory may
differ, and the substitutions of `rehearse.substitutions` say so.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class DuplicatedLinear(torch.nn.Module):
    """A linear layer that every tensor-parallel rank holds whole: `TELinear`, `duplicated`.

    Megatron-Core uses it for the down projections of multi-latent attention. The gradient is summed
    over tensor-parallel ranks where each saw its own part of the sequence.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        bias: bool = False,
        parallel_mode: str | None = "duplicated",
        **_: Any,
    ) -> None:
        super().__init__()
        if parallel_mode != "duplicated":
            raise ValueError(f"parallel_mode must be duplicated, got {parallel_mode!r}")
        shape = (output_size, input_size)
        self.weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
        self.bias = None
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(output_size, dtype=config.params_dtype))
        for parameter in self.parameters():
            parameter.allreduce = True
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[…, input_size] to […, output_size], and no bias left to add."""
        return F.linear(hidden, self.weight, self.bias), None


class FusedWeightGradient:
    """Apex's `fused_weight_gradient_mlp_cuda`: dW is added to the main gradient in the product."""

    @staticmethod
    def wgrad_gemm_accum_fp32(
        hidden: torch.Tensor, gradient: torch.Tensor, main_gradient: torch.Tensor
    ) -> None:
        """[rows, in] and [rows, out] to what is added to [out, in]."""
        rows, outputs = gradient.shape
        inputs = hidden.shape[-1]
        flops = 2 * rows * outputs * inputs
        torch.ops.steptally.product(gradient, outputs, inputs, rows, 1, flops)

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def general_gemm(
    left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype, layout: str = "TN", **_: Any
) -> tuple[torch.Tensor]:
    """Transformer Engine's product of the router: operands in one dtype, the result in another.

    `layout` says which of `left` and `right` is transposed, T, or not, N.
    """
    transposed_left, transposed_right = (side == "T" for side in layout)
    first = right.t() if transposed_right else right
    second = left.t() if transposed_left else left
    return (torch.mm(first, second).to(out_dtype),)


def fused_rms_norm(
    hidden: torch.Tensor,
    normalized_shape: Any,
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """RMSNorm as the one kernel that torch has on a GPU; on a CPU it is many operators."""
    normed: torch.Tensor = _FusedRMSNorm.apply(hidden, weight)
    return normed


class _FusedRMSNorm(torch.autograd.Function):
    """Keeps its input and, in fp32, one number for each token."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        normed = torch.empty_like(hidden)
        deviation = hidden.new_empty(*hidden.shape[:-1], 1, dtype=torch.float32)
        context.save_for_backward(hidden, weight, deviation)
        torch.ops.steptally.kernel(normed, "rms_norm")
        return normed

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, _ = context.saved_tensors
        gradients = [torch.empty_like(hidden), None if weight is None else torch.empty_like(weight)]
        torch.ops.steptally.kernel(gradient, "rms_norm_backward")
        return tuple(gradients)
