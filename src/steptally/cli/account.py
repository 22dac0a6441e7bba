"""The account of a recorded run: what was measured, beside what its job predicts.

`measure` and `predict` know nothing of each other; here their figures meet in one tally.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from steptally.cli.peak import peak_of_run
from steptally.cli.run_mfu import run_mfu
from steptally.errors import InputError, WriteError
from steptally.job import Job, job_from_settings
from steptally.tally import Figure, Tally
from steptally.trace.run_directory import RunDirectory, write_atomically


def account_for_run(directory: RunDirectory, *, job: Job | None = None) -> Tally:
    """Measure a run directory and add what its job predicts, with MFU and HFU.

    `job` replaces the job of the manifest, which a user's own loop may have left out.
    """
    from steptally.measure.run import measure_run

    manifest = directory.read_manifest()
    measured = measure_run(directory)
    if job is not None:
        return _with_prediction(measured, as_recorded(job, manifest), manifest)
    try:
        job = job_of(manifest)
        job = None if job is None else as_recorded(job, manifest)
    except InputError as error:
        return replace(measured, refusals=[*measured.refusals, f"useful FLOPs, MFU, HFU: {error}"])
    if job is None:
        why = manifest.get("job_refused") or "the run does not say which job it trained"
        refusal = (
            f"useful FLOPs, MFU, HFU: {str(why).rstrip('.')}; pass --job JOB to `steptally "
            f"report`, or a whole job=… to steptally.Recorder"
        )
        return replace(measured, refusals=[*measured.refusals, refusal])
    return _with_prediction(measured, job, manifest)


def as_recorded(job: Job, manifest: dict[str, Any]) -> Job:
    """The job on as many ranks as recorded it; `InputError` where it states another number."""
    from steptally.run.preflight import with_world_size

    recorded, stated = manifest["world_size"], job.layout.world_size
    if recorded == stated:
        return job
    if "world_size" in job.assumed:
        return with_world_size(job, recorded)
    raise InputError(
        f"{job.source} states world_size {stated}, and the run had {recorded} ranks: account for "
        f"it with --job, naming the job that was run."
    )


def save(directory: RunDirectory, tally: Tally) -> None:
    """Write `tally.json` and `report.html` into the run directory.

    One that cannot be written (another user's, a full disk) has its account shown all the same.
    """
    from steptally.report.html import render_html

    try:
        write_atomically(directory.tally, tally.dumps())
        write_atomically(directory.report, render_html(tally))
    except WriteError as error:
        sys.stderr.write(f"steptally: warning: the account is not saved: {error}\n")


def job_of(manifest: dict[str, Any]) -> Job | None:
    """The job that a manifest describes; None where its loop stated none."""
    settings = manifest.get("settings")
    if not settings:
        return None
    described = manifest.get("job") or {}
    assumed = (text.partition(": ") for text in described.get("assumed", ()))
    return job_from_settings(
        settings,
        name=described.get("name", "job"),
        source=described.get("source", "manifest.json"),
        assumed={name: why for name, _, why in assumed},
    )


def _with_prediction(measured: Tally, job: Job, manifest: dict[str, Any]) -> Tally:
    from steptally.predict.account import predict

    predicted = predict(job)
    summary = dict(predicted.summary)
    summary.update(measured.summary)
    executed = predicted.summary["flops_per_step_executed"]
    if "flops_per_step_executed" in measured.summary:
        summary["flops_per_step_executed_predicted"] = executed
    refusals = [*measured.refusals]
    warnings = [*measured.warnings, *predicted.warnings]
    warnings += _disagreement(measured, executed)
    if "step_time_s" in measured.summary:
        try:
            peak = peak_of_run(manifest, job.recipe.params_dtype)
            summary.update(run_mfu(summary, job, peak))
        except InputError as error:
            refusals.append(f"mfu, hfu: {error}")
    accounts = {**predicted.accounts, **measured.accounts}
    bases = {name: "predicted" for name in accounts if name not in measured.accounts}
    return Tally(
        basis="measured",
        job=predicted.job,
        convention=predicted.convention,
        summary=summary,
        accounts=accounts,
        account_bases=bases,
        warnings=warnings,
        refusals=refusals,
        injected=measured.injected,
    )


def _disagreement(measured: Tally, predicted_executed: Figure) -> list[str]:
    """A warning where recorded and predicted matrix products are not the same work."""
    recorded = measured.summary.get("flops_per_step_executed")
    if recorded is None or recorded.value == predicted_executed.value:
        return []
    difference = f"{recorded.value} summed from recorded matmul shapes"
    return [f"executed FLOPs differ: {difference}, {predicted_executed.value} predicted"]
