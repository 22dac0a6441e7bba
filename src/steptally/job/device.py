"""One accelerator (or one whole CPU machine): what it can do at best, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Dense peaks per dtype, memory, bandwidth, links, each with its source.

    `dense_peak_flops_per_s` maps a dtype (`fp32`, `tf32`, `bf16`, `fp16`, `fp8`, …) to FLOP/s
    without sparsity; a dtype that is absent has no published peak, which is not a peak of zero.
    `accumulate` maps a dtype to its accumulator where that is not the usual one (fp32 for floating
    point, int32 for int8). `source` says where the figures come from: a data sheet, or a
    measurement; `note` says what a reader of the figures must know. Bandwidths are bytes/s in one
    direction: `link` joins devices of one `link_domain_size`, `host` is PCIe or NVLink-C2C to the
    CPU. `formats` are the number formats of the matrix units; `sparsity_factors` maps a dtype
    to its published 2:4-sparse peak over the dense one (absent: 1, no structured sparsity). The
    last four fields serve finding a device by its name.
    """

    name: str
    dense_peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    source: str = ""

    title: str = ""
    vendor: str = ""
    architecture: str = ""
    form: str = ""
    note: str = ""
    accumulate: Mapping[str, str] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    sparsity_factors: Mapping[str, float] = field(default_factory=dict)
    multiprocessors: int | None = None
    compute_capability: str = ""
    link: str = ""
    link_bandwidth_bytes_per_s: float | None = None
    link_domain_size: int | None = None
    host_bandwidth_bytes_per_s: float | None = None
    devices_per_node: int | None = None
    family: str = ""
    name_words: tuple[str, ...] = ()
    driver_name_is_bare: bool = False
    usual: bool = False

    def sparsity_factor(self, dtype: str) -> float:
        """How often the dense peak of `dtype` the published 2:4-sparse one is; 1 for none.

        >>> from steptally.job.catalog.devices import find_device
        >>> [find_device("MI355X").sparsity_factor(dtype) for dtype in ("bf16", "fp4")]
        [2.0, 1.0]
        """
        return self.sparsity_factors.get(dtype, 1.0)

    def has_format(self, number_format: str) -> bool:
        """Whether the matrix units take this format (`bf16`, `fp8`, `mxfp8`, `nvfp4`, …)."""
        return number_format in self.formats
