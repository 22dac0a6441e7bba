"""MFU and HFU of a recorded run: useful and executed FLOPs over what its devices could do."""

from __future__ import annotations

from collections.abc import Mapping

from steptally.cli.peak import Peak
from steptally.errors import InputError
from steptally.job import Job
from steptally.tally import Figure


def run_mfu(summary: Mapping[str, Figure], job: Job, peak: Peak) -> dict[str, Figure]:
    """`mfu` and `hfu` from the FLOPs and the step time in a summary.

    Raises `InputError` where the run did not train the job's batch, or where more than the peak
    would have been used: then one of the figures is wrong, and no ratio is a result.
    """
    seconds = summary["step_time_s"].value
    if not isinstance(seconds, float) or seconds <= 0:
        return {}
    _require_equal_work(summary, job)
    figures = {}
    for name, flops_name in (("mfu", "flops_per_step_useful"), ("hfu", "flops_per_step_executed")):
        flops = summary.get(flops_name)
        if flops is not None and isinstance(flops.value, int):
            figures[name] = Figure(
                value=flops_utilization(flops.value, seconds, peak.flops_per_s),
                unit="1",
                basis="measured",
                convention=f"{flops.convention}; {peak.origin}",
                origin=f"{flops_name} / (step_time_s · peak)",
            )
    _require_possible(figures, peak)
    return figures


def flops_utilization(flops: int, step_time_s: float, peak_flops_per_s: float) -> float:
    """FLOPs / (step time · peak): MFU for useful FLOPs (Chowdhery et al., 2022), HFU for executed.

    >>> round(flops_utilization(10**12, 0.01, 312e12), 4)
    0.3205
    """
    return flops / (step_time_s * peak_flops_per_s)


def _require_equal_work(summary: Mapping[str, Figure], job: Job) -> None:
    recorded, described = summary.get("tokens_per_step"), job.layout.tokens_per_step
    if recorded is not None and recorded.value not in (None, described):
        raise InputError(
            f"the run recorded {recorded.value} tokens a step and its job has {described} "
            f"(global_batch_size · seq_length): they are not the same work. Correct the job, or "
            f"set step.tokens to the tokens of the whole job."
        )


def _require_possible(figures: Mapping[str, Figure], peak: Peak) -> None:
    for name, figure in figures.items():
        if isinstance(figure.value, float) and figure.value > 1:
            raise InputError(
                f"{name.upper()} would be {100 * figure.value:.0f} %, over 100 %: the peak is too "
                f"low or is another device's ({peak.origin}). {peak.remedy}"
            )
