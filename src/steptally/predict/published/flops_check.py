"""Published throughputs against the FLOPs that each source's convention counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steptally.errors import InputError
from steptally.job import Job, job_from_settings
from steptally.job.catalog.devices import find_device
from steptally.predict.convention import Convention
from steptally.predict.conventions import CONVENTIONS, find_convention
from steptally.predict.flops import useful_flops
from steptally.predict.published.row_settings import architecture_settings
from steptally.predict.published.rows import PublishedRow
from steptally.predict.published.sources import Source, find_source

TERA = 1e12
# An error worth explaining, and one within the digits that sources print.
LARGE, SMALL = 0.01, 0.003
RECOMPUTE: Mapping[str, Mapping[str, object]] = {
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "selective": {"recompute_granularity": "selective"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row: predicted and measured in `unit`, or the reason why it cannot be compared.

    `note` explains a large error: which other convention the figure agrees with, if any.
    """

    id: str
    convention: str
    unit: str = ""
    predicted: float | None = None
    measured: float | None = None
    reason: str = ""
    note: str = ""

    @property
    def error(self) -> float | None:
        """predicted / measured − 1."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1


def compare_flops(rows: Sequence[PublishedRow]) -> list[Comparison]:
    """What each row's rate amounts to under its source's convention, beside what it prints.

    predicted = FLOPs per token · measured tokens/s/device; compared with the printed TFLOP/s, or
    with the printed MFU times the source's peak.
    """
    return [compare_row(row) for row in rows]


def compare_row(row: PublishedRow) -> Comparison:
    """One row; whatever it lacks becomes its reason."""
    source = find_source(row)
    name = str(row.values.get("convention") or (source.convention if source else ""))
    try:
        unit, measured = _published_figure(row)
        rate = _rate(row)
        if not name:
            raise InputError(
                "its source is not in the table of conventions: add `convention: NAME` to the row"
            )
        job = row_job(row, source)
        scale = TERA if unit == "TFLOP/s/device" else _peak_flops_per_s(row, source)
        predicted = flops_per_token(job, find_convention(name)) * rate / scale
    except InputError as error:
        return Comparison(id=row.id, convention=name, reason=str(error).rstrip("."))
    except (TypeError, ValueError, AttributeError) as error:  # a value of another kind
        return Comparison(id=row.id, convention=name, reason=f"the row is damaged: {error}")
    note = "" if _agrees(predicted, measured, LARGE) else _explanation(job, rate / scale, measured)
    return Comparison(
        id=row.id, convention=name, unit=unit, predicted=predicted, measured=measured, note=note
    )


def _agrees(predicted: float, measured: float, within: float) -> bool:
    return abs(predicted / measured - 1) <= within


def _explanation(job: Job, scaled_rate: float, measured: float) -> str:
    """Which conventions of the list, though not its source's, give the printed figure."""
    fitting = [
        name
        for name, convention in CONVENTIONS.items()
        if _agrees(flops_per_token(job, convention) * scaled_rate, measured, SMALL)
    ]
    if fitting:
        return f"printed as {' or '.join(fitting)} counts, not as its source does elsewhere"
    return "no convention makes its two figures agree: one of them is rounded or of another run"


def row_job(row: PublishedRow, source: Source | None) -> Job:
    """The row's model and sequence on one device: FLOPs per token need no more of its layout."""
    settings = architecture_settings(row, source)
    settings.update(RECOMPUTE.get(str(row.values.get("recompute")), {}))
    return job_from_settings(settings, name=row.id, source=row.id)


def flops_per_token(job: Job, convention: Convention) -> float:
    """Useful FLOPs of a step over its tokens."""
    return float(useful_flops(job, convention)) / job.layout.tokens_per_step


def _published_figure(row: PublishedRow) -> tuple[str, float]:
    flops_per_s, share = row.measure("tflops_per_gpu"), row.measure("mfu")
    if flops_per_s is not None:
        return "TFLOP/s/device", flops_per_s
    if share is not None:
        return "MFU", share
    raise InputError("it publishes neither TFLOP/s nor MFU to compare with")


def _rate(row: PublishedRow) -> float:
    rate = row.tokens_per_s_per_device
    if rate is None:
        raise InputError(
            "it publishes no rate: neither tokens/s nor a step time with its batch and devices"
        )
    return rate


def _peak_flops_per_s(row: PublishedRow, source: Source | None) -> float:
    if source is not None and source.peak_tflops is not None:
        return source.peak_tflops * TERA
    device = find_device(str(row.values.get("gpu") or ""))
    dtype = "fp16" if row.values.get("dtype") == "fp16" else "bf16"
    if dtype not in device.dense_peak_flops_per_s:
        raise InputError(f"{device.name} has no published {dtype} peak to make an MFU of")
    return device.dense_peak_flops_per_s[dtype]
