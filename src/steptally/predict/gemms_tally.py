"""The predicted tally of one rank's matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job.device import Device
from steptally.job.job import Job
from steptally.job.training_faults import training_faults
from steptally.predict.attention_kernel import attention_kernel_assumption
from steptally.predict.gemm_relief import with_relief
from steptally.predict.gemms import predict_gemms
from steptally.predict.roofline import LAUNCH_S, dense_peak
from steptally.tally import Figure, GemmRow, Tally

MODEL = "tiles, waves, bytes and launches as in docs/formulas/gemms.md: an upper bound"


def gemms_tally(
    job: Job, rank: int = 0, device: Device | None = None, *, launch_s: float = LAUNCH_S
) -> Tally:
    """Account `gemms` of one rank; with a device, also what it expects of them.

    Raises `InputError` for a rank that the job does not have, or a device without what is needed.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128, "transformer_impl": "local"})
    >>> gemms_tally(job).summary["gemms_flops_per_step"].value
    12582912
    """
    rows = predict_gemms(job, rank, device, launch_s=launch_s)
    summary = {
        "gemms_flops_per_step": Figure(
            value=sum(row.flops for row in rows),
            unit="FLOP",
            basis="predicted",
            convention="executed",
            origin=f"all products of rank {rank} in one step",
        )
    }
    if device is not None:
        rows = with_relief(rows, job, rank, device, launch_s=launch_s)
        summary |= _expectations(rows, device)
    return Tally(
        basis="predicted",
        job=job.as_json(),
        convention="executed",
        summary=summary,
        accounts={"gemms": rows},
        warnings=(*job.notes, *training_faults(job), *_warnings(job, device)),
    )


def _expectations(rows: Sequence[GemmRow], device: Device) -> dict[str, Figure]:
    """Time of all products one after another, and the part of the peak that they reach."""
    ideal_s = [row.flops / dense_peak(device, row.dtype or "") for row in rows]
    spent_s = [
        ideal / row.efficiency for ideal, row in zip(ideal_s, rows, strict=True) if row.efficiency
    ]
    origin = f"{MODEL}; {device.name}, {device.source}"
    return {
        "gemms_time_s": Figure(
            value=sum(spent_s), unit="s", basis="predicted", origin=f"at least; {origin}"
        ),
        "gemms_efficiency": Figure(
            value=sum(ideal_s) / sum(spent_s),
            unit="1",
            basis="predicted",
            convention="of the dense peaks",
            origin=origin,
        ),
    }


def _warnings(job: Job, device: Device | None) -> list[str]:
    found = []
    assumption = attention_kernel_assumption(job)
    if assumption is not None:
        found.append(assumption)
    if job.architecture.num_experts is not None:
        found.append("routing is taken to be balanced: every expert gets the same tokens")
    if device is None:
        found.append(
            "no device: tiles, waves and bounds are not known; pass --device NAME "
            "(`steptally devices` lists them)"
        )
    return found
