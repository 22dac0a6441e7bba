"""How long a matrix product takes at best on a device, and what bounds it.

compute: FLOPs at the dense peak, over what tiles and waves waste; memory: bytes at the device's
bandwidth; launch: neither fills the time that starting a kernel takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptally.errors import InputError
from steptally.job.device import Device
from steptally.job.job import Job
from steptally.predict.precision import uses_transformer_engine
from steptally.predict.products import FORWARD, RECOMPUTE
from steptally.predict.tiling import Tiling, choose_tiling

COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"
# A launch costs the host 2 to 6 µs ("Getting Started with CUDA Graphs", NVIDIA, 2019, measures
# 3.8 µs a kernel): a kernel shorter than this waits for the host unless a CUDA graph launches it.
LAUNCH_S = 4e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The expected time of one call, what bounds it, and the part of the dense peak it reaches."""

    seconds: float
    bound: str
    efficiency: float
    tiling: Tiling | None


def product_dtype(job: Job, precision: str, phase: str) -> str:
    """The dtype of a product's operands: eight or four bit for linear layers where the recipe says.

    Transformer Engine keeps attention, and Megatron the LM head, in `params_dtype`; the router has
    `moe_router_dtype`. Forward, Transformer Engine's product takes operands in `params_dtype` and
    gives fp32; it has none for fp64 (`RouterGatingLinearFunction` of megatron-core 0.16.1).
    """
    recipe = job.recipe
    if precision == "router" and recipe.moe_router_dtype is not None:
        mixed = recipe.moe_router_dtype == "fp32" and uses_transformer_engine(job)
        forward = phase in (FORWARD, RECOMPUTE)
        return recipe.params_dtype if mixed and forward else recipe.moe_router_dtype
    if precision == "linear" and uses_transformer_engine(job):
        if recipe.fp4 is not None:
            return "fp4"
        if recipe.fp8 is not None:
            return "mxfp8" if recipe.fp8_recipe == "mxfp8" else "fp8"
    return recipe.params_dtype


def dense_peak(device: Device, dtype: str) -> float:
    """The dense peak in FLOP/s; raises `InputError` where the device has none for the dtype."""
    name = "fp8" if dtype == "mxfp8" else dtype
    peak = device.dense_peak_flops_per_s.get(name)
    if dtype == "mxfp8" and device.formats and not device.has_format(dtype):
        peak, name = None, dtype
    if peak is None:
        known = ", ".join(sorted(device.dense_peak_flops_per_s)) or "none"
        raise InputError(
            f"{device.name} has no dense {name} peak (known: {known}), which this job's products "
            f"need: choose another device or precision."
        )
    return peak


def bound_product(
    device: Device,
    *,
    m: int,
    n: int,
    batch: int,
    flops: int,
    size_bytes: int,
    dtype: str,
    launch_s: float = LAUNCH_S,
    fused: bool = False,
) -> Bound:
    """The roofline of one call of a product on a device.

    A `fused` attention kernel tiles queries and keys in its own way: no waves are expected of it.
    Raises `InputError` where the device states no multiprocessors, bandwidth or peak.
    """
    if device.multiprocessors is None or device.memory_bandwidth_bytes_per_s is None:
        missing = "multiprocessors" if device.multiprocessors is None else "memory bandwidth"
        raise InputError(
            f"{device.name} states no {missing}, which waves and the roofline need: give a device "
            f"of `steptally devices`, or a .toml file that states it."
        )
    tiling = None if fused else choose_tiling(m, n, batch, device.multiprocessors)
    ideal_s = flops / dense_peak(device, dtype)
    compute_s = ideal_s
    if tiling is not None:
        compute_s /= tiling.tail_efficiency * tiling.tile_efficiency
    memory_s = size_bytes / device.memory_bandwidth_bytes_per_s
    seconds, bound = max((compute_s, COMPUTE), (memory_s, MEMORY), (launch_s, LAUNCH))
    return Bound(seconds=seconds, bound=bound, efficiency=ideal_s / seconds, tiling=tiling)
