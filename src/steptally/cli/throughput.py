"""From what a user measured or read somewhere to tokens/s, MFU and HFU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from steptally.errors import InputError
from steptally.job import Device, Job
from steptally.job.catalog.devices import find_device
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.conventions import convert, find_convention
from steptally.predict.utilization import (
    TERA,
    Peak,
    Rate,
    check_possible,
    device_peak,
    is_sparse_peak,
    products_dtype,
    rate_of_step_time,
    step_time_of_flops,
    step_time_of_tokens,
)
from steptally.tally import Figure

# Peaks nearer than this are one peak, rounded by different people.
SAME_PEAK = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured speed at most, and what to divide it by. Rates are of one device.

    `mfu` is as printed, a share or a percentage (`mfu_as_share`).
    """

    step_time_s: float | None = None
    tokens_per_s_per_device: float | None = None
    tflops_per_device: float | None = None
    mfu: float | None = None
    device: str | None = None
    peak_tflops: float | None = None
    peak_dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Figures of a speed, and what must be said about them."""

    figures: dict[str, Figure] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def throughput(
    job: Job,
    convention: Convention,
    packed_lengths: Sequence[int] | None,
    measured: Measured,
) -> Throughput:
    """MFU and HFU of a measured speed. Raises `InputError` where it is impossible.

    Nothing measured gives nothing; no device gives the rates, and refuses MFU.
    """
    _check(measured)
    peak, warnings = peak_of(job, measured)
    measured, about_mfu = mfu_as_share(measured, peak)
    warnings += about_mfu
    step_time_s = _step_time(job, convention, packed_lengths, measured)
    if step_time_s is None:
        return Throughput(warnings=tuple(warnings))
    rate = rate_of_step_time(job, step_time_s, convention, packed_lengths)
    figures = _rate_figures(rate, convention, measured)
    if peak is None:
        why = "mfu, hfu: the job names no device; pass --device NAME (see `steptally devices`)."
        return Throughput(figures=figures, warnings=tuple(warnings), refusals=(why,))
    check_possible(job, rate, convention, peak)
    utilization, refusals = utilization_figures(rate, convention, peak)
    if convention.name != EXACT_CAUSAL.name:
        utilization["mfu_exact_causal"] = _converted(job, utilization["mfu"], packed_lengths)
    return Throughput(
        figures={**figures, **utilization}, warnings=tuple(warnings), refusals=refusals
    )


def _check(measured: Measured) -> None:
    speeds = {
        "--step-time": measured.step_time_s,
        "--tokens-per-second": measured.tokens_per_s_per_device,
        "--tflops": measured.tflops_per_device,
        "--mfu": measured.mfu,
    }
    given = [name for name, value in speeds.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are all given: each is a speed; give one of them.")
    for name, value in {**speeds, "--peak-tflops": measured.peak_tflops}.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value:g}: it must be a finite number above 0.")
    if measured.mfu is not None and measured.peak_tflops is None:
        raise InputError(
            "--mfu needs --peak-tflops: an MFU is a share of a peak, and only the one who printed "
            "it knows which; give the peak that it was divided by."
        )


def mfu_as_share(measured: Measured, peak: Peak | None) -> tuple[Measured, list[str]]:
    """What was measured, with the printed MFU as a share; and how it was understood.

    Up to 1 it is a share. Above, it is a percentage, unless the device could do the share: over a
    peak that is too small an MFU is over 100 % (AMD-AGI/Primus#772).
    """
    printed, stated_tflops = measured.mfu, measured.peak_tflops
    if printed is None or stated_tflops is None or printed <= 1:
        return measured, []
    if peak is not None and printed * stated_tflops * TERA <= peak.flops_per_s:
        share = f"--mfu {printed:g} is taken as a share, {100 * printed:g} %"
        return measured, [f"{share}: if it is {printed:g} %, pass {printed / 100:g}."]
    return replace(measured, mfu=printed / 100), []


def peak_of(job: Job, measured: Measured) -> tuple[Peak | None, list[str]]:
    """The dense peak to divide by, and what is wrong with the peak that the user divided by."""
    name = measured.device or job.cluster.device
    if name is None:
        return None, []
    device: Device = find_device(name)
    warnings = []
    dtype = measured.peak_dtype or products_dtype(job)
    if measured.peak_dtype is None and job.recipe.params_dtype == "fp32":
        warnings.append(
            "the job states neither bf16 nor fp16 (Megatron's default is fp32): MFU is of the "
            "dense bf16 peak; pass --peak-dtype fp32 if it really trained in fp32."
        )
    peak = device_peak(device, dtype)
    if measured.peak_tflops is not None:
        warnings += _about_stated_peak(measured.peak_tflops, peak)
    return peak, warnings


def _about_stated_peak(stated_tflops: float, peak: Peak) -> list[str]:
    dense, device = peak.flops_per_s / TERA, peak.device.name
    if is_sparse_peak(stated_tflops * TERA, peak):
        found = f"is the sparse number: {stated_tflops:g} TFLOP/s is {device}'s {peak.dtype} peak"
        return [f"peak given {found} with 2:4 sparsity; MFU is of the dense {dense:g} TFLOP/s."]
    if abs(stated_tflops / dense - 1) > SAME_PEAK:
        found = f"{stated_tflops:g} TFLOP/s, and {device}'s dense {peak.dtype} peak is {dense:g}"
        return [f"peak given is not that of the device: {found}; MFU is of the latter."]
    return []


def _step_time(
    job: Job,
    convention: Convention,
    packed_lengths: Sequence[int] | None,
    measured: Measured,
) -> float | None:
    if measured.step_time_s is not None:
        return measured.step_time_s
    if measured.tokens_per_s_per_device is not None:
        return step_time_of_tokens(job, measured.tokens_per_s_per_device)
    tflops = measured.tflops_per_device
    if measured.mfu is not None and measured.peak_tflops is not None:
        tflops = measured.mfu * measured.peak_tflops
    if tflops is None:
        return None
    return step_time_of_flops(job, tflops * TERA, convention, packed_lengths)


def _rate_figures(rate: Rate, convention: Convention, measured: Measured) -> dict[str, Figure]:
    told = {
        "--step-time": measured.step_time_s,
        "--tokens-per-second": measured.tokens_per_s_per_device,
        "--tflops": measured.tflops_per_device,
        "--mfu and --peak-tflops": measured.mfu,
    }
    origin = next(f"from {name} as given" for name, value in told.items() if value is not None)

    def figure(value: float, unit: str, named: str = "") -> Figure:
        return Figure(value=value, unit=unit, basis="measured", convention=named, origin=origin)

    return {
        "step_time_s": figure(rate.step_time_s, "s"),
        "tokens_per_s_per_device": figure(rate.tokens_per_s_per_device, "token/s"),
        "flops_per_s_per_device_useful": figure(rate.useful_flops_per_s, "FLOP/s", convention.name),
        "flops_per_s_per_device_executed": figure(rate.executed_flops_per_s, "FLOP/s", "executed"),
    }


def _converted(job: Job, mfu: Figure, packed_lengths: Sequence[int] | None) -> Figure:
    """The same step time under the exact count: what an MFU of another convention is worth."""
    source = find_convention(mfu.convention)
    return Figure(
        value=convert(float(mfu.value or 0), source, EXACT_CAUSAL, job, packed_lengths),
        unit="1",
        basis="measured",
        convention=EXACT_CAUSAL.name,
        origin=f"the MFU above, converted from {mfu.convention}",
    )


def utilization_figures(
    rate: Rate, convention: Convention, peak: Peak
) -> tuple[dict[str, Figure], tuple[str, ...]]:
    """MFU and HFU over a peak; an HFU over 100 % is refused with what must be wrong."""
    mfu = rate.useful_flops_per_s / peak.flops_per_s
    hfu: float | None = rate.executed_flops_per_s / peak.flops_per_s
    refusals: tuple[str, ...] = ()
    if hfu is not None and hfu > 1:
        why = f"hfu: the job as stated executes {hfu:.1%} of the {peak.origin}, which nothing does"
        why += ": its recompute or attention_backend is not what ran; correct them with --set."
        refusals = (why,)
        hfu = None
    figures = {
        "mfu": Figure(
            value=mfu,
            unit="1",
            basis="measured",
            convention=convention.name,
            origin=f"useful FLOPs over the {peak.origin}",
        ),
        "hfu": Figure(
            value=hfu,
            unit="1",
            basis="measured",
            convention="executed",
            origin=f"executed FLOPs over the {peak.origin}",
        ),
    }
    return figures, refusals
