"""One accelerator (or one whole CPU machine): what it can do at best, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Dense peaks per dtype, memory, bandwidth, each with its source.

    `dense_peak_flops_per_s` maps a dtype (`fp32`, `tf32`, `bf16`, `fp16`, `fp8`, …) to FLOP/s
    without sparsity. `source` says where the figures come from: a data sheet, or a measurement.
    """

    name: str
    dense_peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    source: str = ""
