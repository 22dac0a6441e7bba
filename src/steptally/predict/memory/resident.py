"""What lives for the whole run: parameters, gradient buffers, optimizer state, FP8 copies.

Sources: `DistributedOptimizer`, `Float16OptimizerWithFloat16Params`, `OptimizerConfig` and
`HybridDeviceOptimizer` of megatron-core 0.16.1; the weight workspaces of Transformer Engine 2.11.
"""

from __future__ import annotations

from typing import NamedTuple

from steptally.job import Job, Recipe
from steptally.predict.count import Count
from steptally.predict.memory.buffers import Buffers
from steptally.predict.precision import ELEMENT_BITS, gradient_dtype

# The numbers that each optimizer keeps for a parameter. Muon's are for matrices of linear layers;
# everything else gets Adam's.
MOMENTS = {
    "adam": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
    "lion": ("exp_avg",),
    "muon": ("momentum_buffer",),
    "dist_muon": ("momentum_buffer",),
    "adaptive_muon": ("momentum_buffer", "exp_avg_sq"),
    "soap": ("exp_avg", "exp_avg_sq"),
}
MATRIX_OPTIMIZERS = ("muon", "dist_muon")


class Line(NamedTuple):
    """One line of the account: so many bytes of `name`, of a lifetime."""

    lifetime: str
    name: str
    bytes: Count


def parameter_line(job: Job, buffers: Buffers, quantized: Count = 0) -> Line:
    """Parameters in the training dtype; with the distributed optimizer in padded buffers.

    With `fp8_param_gather` the `quantized` elements exist in FP8 only (`memory.lasting`).
    """
    dtype = job.recipe.params_dtype
    elements = buffers.dense_padded + buffers.expert_padded
    if job.recipe.fp8_param_gather:
        elements = elements - quantized
    return Line("resident", f"parameters ({dtype})", elements * ELEMENT_BITS[dtype] // 8)


def gradient_line(job: Job, buffers: Buffers) -> Line:
    """Main gradients, in which every micro-batch accumulates: `_ParamAndGradBuffer.grad_data`."""
    dtype = gradient_dtype(job)
    if job.recipe.use_precision_aware_optimizer:
        dtype = job.recipe.main_grads_dtype
    elements = buffers.dense_padded + buffers.expert_padded
    return Line("iteration", f"gradient buffer ({dtype})", elements * ELEMENT_BITS[dtype] // 8)


def optimizer_lines(job: Job, buffers: Buffers) -> list[Line]:
    """fp32 main parameters (none for fp32 training) and the optimizer's moments, sharded or not."""
    recipe = job.recipe
    elements = optimizer_elements(job, buffers)
    lines = []
    if recipe.params_dtype != "fp32":
        dtype, size = main_parameter_bytes(recipe)
        lines.append(Line("resident", f"main parameters ({dtype})", elements * size))
    kept = elements
    if recipe.optimizer_cpu_offload:
        kept = elements - _offloaded(elements, recipe.optimizer_offload_fraction)
    for name, dtype in moment_dtypes(recipe):
        lines.append(Line("resident", f"{name} ({dtype})", kept * ELEMENT_BITS[dtype] // 8))
    if recipe.optimizer in MATRIX_OPTIMIZERS:
        vectors = buffers.vectors * elements // (buffers.dense + buffers.expert)
        lines.append(Line("resident", "Adam's second moment of vectors (fp32)", 4 * vectors))
    return lines


def optimizer_elements(job: Job, buffers: Buffers) -> Count:
    """Parameters whose optimizer state this rank keeps: all, or its shard of each buffer."""
    if not job.recipe.use_distributed_optimizer:
        return buffers.dense + buffers.expert
    dense = buffers.dense_padded // buffers.dense_shards
    return dense + buffers.expert_padded // buffers.expert_shards


def main_parameter_bytes(recipe: Recipe) -> tuple[str, int]:
    """Dtype and bytes of a main parameter.

    The precision-aware optimizer keeps of an fp32 main parameter only the 16 bits that the bf16
    parameter lacks (`store_param_remainders`, on by default).
    """
    if not recipe.use_precision_aware_optimizer:
        return "fp32", 4
    if recipe.main_params_dtype == "fp32" and recipe.bf16:
        return "fp32, 16-bit remainders", 2
    return recipe.main_params_dtype, ELEMENT_BITS[recipe.main_params_dtype] // 8


def moment_dtypes(recipe: Recipe) -> list[tuple[str, str]]:
    """(name, dtype) of each moment: fp32, or what the precision-aware optimizer is told."""
    stated = {"exp_avg": recipe.exp_avg_dtype, "exp_avg_sq": recipe.exp_avg_sq_dtype}
    aware = recipe.use_precision_aware_optimizer
    return [
        (name, stated.get(name, "fp32") if aware else "fp32") for name in MOMENTS[recipe.optimizer]
    ]


def _offloaded(elements: Count, fraction: float) -> Count:
    """Elements whose moments are in host memory."""
    return elements * round(fraction * 1024) // 1024
