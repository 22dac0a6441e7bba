"""MFU and HFU of a measured rate: useful and executed FLOPs over what a device can do.

MFU: Chowdhery et al. 2022, arXiv:2204.02311, appendix B. HFU: Korthikanti et al. 2022,
arXiv:2205.05198, section 5.3. Both per device, over the *dense* peak of the dtype of the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptally.errors import InputError
from steptally.job import Device, Job
from steptally.predict.convention import Convention
from steptally.predict.conventions import CONVENTIONS
from steptally.predict.flops import flops_per_step, useful_flops

TERA = 1e12
# How near to a figure another must be to be taken for it.
SAME = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A device's dense peak for one dtype, in FLOP/s, and the sentence that says whose it is."""

    device: Device
    dtype: str
    flops_per_s: float

    @property
    def origin(self) -> str:
        """`dense bf16 peak 989.4 TFLOP/s of h100-sxm-80`."""
        return f"dense {self.dtype} peak {self.flops_per_s / TERA:g} TFLOP/s of {self.device.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A measured speed: seconds of one step of the job on all its devices."""

    step_time_s: float
    useful_flops_per_s: float
    executed_flops_per_s: float
    tokens_per_s_per_device: float


def products_dtype(job: Job) -> str:
    """The dtype of the job's matrix products; bf16 where no precision is stated.

    Megatron's own default is fp32, which nobody trains a language model in by choice; `count`
    says that it was taken for bf16.
    """
    if job.recipe.fp4:
        return "fp4"
    if job.recipe.fp8:
        return "fp8"
    return "bf16" if job.recipe.params_dtype == "fp32" else job.recipe.params_dtype


def device_peak(device: Device, dtype: str) -> Peak:
    """The device's dense peak for a dtype. Raises `InputError` where none is published.

    >>> from steptally.job.catalog.devices import find_device
    >>> device_peak(find_device("NVIDIA H100 PCIe"), "bf16").flops_per_s / 1e12
    756.5
    """
    peak = device.dense_peak_flops_per_s.get(dtype)
    if peak is None:
        known = ", ".join(device.dense_peak_flops_per_s)
        raise InputError(
            f"{device.name} has no published dense {dtype} peak, so there is no MFU to divide by "
            f"it: its peaks are {known}; choose one with --peak-dtype."
        )
    return Peak(device=device, dtype=dtype, flops_per_s=peak)


def rate_of_step_time(
    job: Job,
    step_time_s: float,
    convention: Convention,
    packed_lengths: Sequence[int] | None = None,
) -> Rate:
    """What a step time amounts to, per device."""
    useful = float(useful_flops(job, convention, packed_lengths))
    executed = flops_per_step(job, packed_lengths=packed_lengths).executed
    devices = job.layout.world_size
    return Rate(
        step_time_s=step_time_s,
        useful_flops_per_s=useful / step_time_s / devices,
        executed_flops_per_s=executed / step_time_s / devices,
        tokens_per_s_per_device=job.layout.tokens_per_step / step_time_s / devices,
    )


def step_time_of_tokens(job: Job, tokens_per_s_per_device: float) -> float:
    """Seconds of a step at so many tokens a second on each device."""
    return job.layout.tokens_per_step / (tokens_per_s_per_device * job.layout.world_size)


def step_time_of_flops(
    job: Job,
    flops_per_s_per_device: float,
    convention: Convention,
    packed_lengths: Sequence[int] | None = None,
) -> float:
    """Seconds of a step at so many useful FLOP/s on each device, as `convention` counts them."""
    useful = float(useful_flops(job, convention, packed_lengths))
    return useful / (flops_per_s_per_device * job.layout.world_size)


def is_sparse_peak(stated_flops_per_s: float, peak: Peak) -> bool:
    """Whether a stated peak is the device's peak with 2:4 structured sparsity."""
    factor = peak.device.sparsity_factor(peak.dtype)
    return factor > 1 and abs(stated_flops_per_s / (peak.flops_per_s * factor) - 1) < SAME


def rebased(share: float, divided_by_flops_per_s: float, peak: Peak) -> float:
    """An MFU that was printed over one peak, over another.

    >>> from steptally.job.catalog.devices import find_device
    >>> round(rebased(5.63, 312e12, device_peak(find_device("MI355X"), "bf16")), 3)
    0.703
    """
    return share * divided_by_flops_per_s / peak.flops_per_s


def check_possible(job: Job, rate: Rate, convention: Convention, peak: Peak) -> None:
    """Raise `InputError` where a rate is over the device's peak, naming what could be wrong."""
    share = rate.useful_flops_per_s / peak.flops_per_s
    if share <= 1:
        return
    causes = _likely_causes(job, rate, convention, peak)
    listed = "; ".join(f"({number}) {cause}" for number, cause in enumerate(causes, start=1))
    raise InputError(
        f"{rate.useful_flops_per_s / TERA:.1f} TFLOP/s per device is an MFU of {share:.1%} of the "
        f"{peak.origin}: no device exceeds its peak, so one of the inputs is wrong. "
        f"Likely: {listed}."
    )


def _likely_causes(job: Job, rate: Rate, convention: Convention, peak: Peak) -> list[str]:
    """What would bring the figure to at most 100 %, most likely first."""
    share = rate.useful_flops_per_s / peak.flops_per_s
    devices = job.layout.world_size
    causes = []
    if devices > 1 and share / devices <= 1:
        causes.append(
            f"the figure is of the whole cluster: {share / devices:.1%} over {devices} devices"
        )
    factor = peak.device.sparsity_factor(peak.dtype)
    if 1 < share <= factor:
        sparse = factor * peak.flops_per_s / TERA
        causes.append(
            f"it was made with the sparse peak, which data sheets print large ({sparse:g} TFLOP/s "
            f"of {peak.dtype}): the catalogue's are dense"
        )
    causes += _other_conventions(job, rate, convention, peak)
    causes += _other_devices(rate, peak)
    if devices == 1:
        causes.append(
            "world_size is 1 here: a step time or batch of more devices needs --set world_size=N"
        )
    return causes


def _other_conventions(job: Job, rate: Rate, convention: Convention, peak: Peak) -> list[str]:
    """Conventions under which the same step time is possible."""
    counted = float(useful_flops(job, convention))
    share = rate.useful_flops_per_s / peak.flops_per_s
    possible = [
        f"{name} {share * float(useful_flops(job, other)) / counted:.1%}"
        for name, other in CONVENTIONS.items()
        if share * float(useful_flops(job, other)) / counted <= 1
    ]
    if not possible:
        return []
    return [f"convention {convention.name} counts more than was done: {', '.join(possible[:3])}"]


def _other_devices(rate: Rate, peak: Peak) -> list[str]:
    from steptally.job.catalog.devices import catalogue

    able = sorted(
        (device.dense_peak_flops_per_s[peak.dtype], name)
        for name, device in catalogue().items()
        if device.dense_peak_flops_per_s.get(peak.dtype, 0.0) >= rate.useful_flops_per_s
    )
    if not able:
        return [
            "no device of the catalogue reaches it: the unit may be GFLOP/s, or of more devices"
        ]
    names = ", ".join(
        f"{name} {rate.useful_flops_per_s / flops_per_s:.1%}" for flops_per_s, name in able[:3]
    )
    return [f"the device is another one: {names}"]
