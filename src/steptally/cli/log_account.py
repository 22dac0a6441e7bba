"""The tally of a log: its steady speed, MFU and HFU, its convention, and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptally.cli.log_convention import batch, logged_figures, logged_rows, tokens_per_s
from steptally.cli.throughput import Measured, peak_of, utilization_figures
from steptally.errors import InputError
from steptally.job import Job, read_job
from steptally.measure.log import LogLine, read_log
from steptally.measure.log_series import (
    LogSeries,
    iterations_behind,
    sort_lines,
    split_starts,
    spread,
)
from steptally.predict.account import whole_or_nearest
from steptally.predict.convention import Convention
from steptally.predict.conventions import find_convention
from steptally.predict.flops import flops_per_step, useful_flops
from steptally.predict.utilization import Rate, check_possible
from steptally.tally import Figure, LossRow, Tally

MOST_LOSSES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """A log, and what the user says beside it."""

    log: Path
    job: str | None = None
    overrides: tuple[str, ...] = ()
    world_size: int | None = None
    device: str | None = None
    peak_dtype: str | None = None
    warmup_iterations: int | None = None
    convention: str = "exact-causal"


def log_tally(run: LoggedRun) -> Tally:
    """Read a log and account for its speed.

    Raises `InputError` where it holds no iteration line, where the job or its world size is not
    known, and where the speed is over the device's peak.
    """
    convention = find_convention(run.convention)
    lines = read_log(run.log)
    job, warnings = _job(run, lines)
    series = sort_lines(lines, run.warmup_iterations)
    figures = _speed_figures(job, series, convention)
    measured = Measured(device=run.device, peak_dtype=run.peak_dtype)
    peak, about_peak = peak_of(job, measured)
    refusals: tuple[str, ...] = ()
    rate = _rate(job, series, convention)
    if peak is None:
        refusals = ("mfu, hfu: the job names no device; pass --device NAME (`steptally devices`).",)
    else:
        check_possible(job, rate, convention, peak)
        utilization, refusals = utilization_figures(rate, convention, peak)
        figures.update(utilization)
    logged, about_log = logged_rows(job, series)
    figures.update(logged_figures(logged))
    if peak is not None and logged and logged[0].logged_flops_per_s > peak.flops_per_s:
        share = logged[0].logged_flops_per_s / peak.flops_per_s
        about_log.append(f"the logged TFLOP/s are {share:.0%} of the {peak.origin}: impossible.")
    return Tally(
        basis="measured",
        job=job.as_json(),
        convention=convention.name,
        summary=figures,
        accounts={"logged": logged, "loss": _losses(job, lines, convention)},
        warnings=(*warnings, *about_peak, *_about_series(series), *about_log),
        refusals=refusals,
    )


def _job(run: LoggedRun, lines: Sequence[LogLine]) -> tuple[Job, list[str]]:
    """The job of a log, with a world size that somebody stated."""
    source = run.job or str(run.log)
    stated = list(run.overrides)
    if run.world_size is not None:
        stated.append(f"world_size={run.world_size}")
    job = read_job(source, stated)
    if "world_size" not in job.assumed:
        return job, []
    named = [line.world_size for line in lines if line.world_size]
    if not named:
        raise InputError(
            f"{run.log} does not say on how many devices it ran, and neither does {source}: "
            f"tokens/s per device and MFU need it; pass --world-size N."
        )
    world_size = max(named)
    job = read_job(source, [*stated, f"world_size={world_size}"])
    return job, [f"world_size {world_size} is read from the log's rank prefix."]


def _rate(job: Job, series: LogSeries, convention: Convention) -> Rate:
    """Medians over the steady iterations, per device."""
    tokens = spread([tokens_per_s(job, line) for line in series.steady]).median
    per_step = job.layout.tokens_per_step
    useful = float(useful_flops(job, convention)) / per_step
    executed = flops_per_step(job).executed / per_step
    return Rate(
        step_time_s=spread([line.duration_ms for line in series.steady]).median / 1e3,
        useful_flops_per_s=useful * tokens,
        executed_flops_per_s=executed * tokens,
        tokens_per_s_per_device=tokens,
    )


def _speed_figures(job: Job, series: LogSeries, convention: Convention) -> dict[str, Figure]:
    times = spread([line.duration_ms / 1e3 for line in series.steady])
    tokens = spread([tokens_per_s(job, line) for line in series.steady])
    rate = _rate(job, series, convention)
    each = "" if series.interval == 1 else f", each the mean of {series.interval} iterations"
    origin = f"median of {times.count} steady lines{each}"
    values = {
        "step_time_s": (times.median, "s", origin),
        "step_time_low_quartile_s": (times.low_quartile, "s", "a quarter of the lines is below"),
        "step_time_high_quartile_s": (times.high_quartile, "s", "a quarter of the lines is above"),
        "step_time_max_s": (times.highest, "s", "slowest steady line"),
        "tokens_per_s_per_device": (tokens.median, "token/s", origin),
        "tokens_per_s": (tokens.median * job.layout.world_size, "token/s", origin),
        "flops_per_s_per_device_useful": (rate.useful_flops_per_s, "FLOP/s", origin),
        "flops_per_s_per_device_executed": (rate.executed_flops_per_s, "FLOP/s", origin),
        "steady_iterations": (series.steady_iterations, "step", "what the medians rest on"),
        "warmup_iterations": (series.warmup_iterations, "step", "set apart"),
        "skipped_iterations": (
            sum(line.skipped + line.nan for line in series.skipped),
            "step",
            f"on {len(series.skipped)} lines, set apart",
        ),
        "rampup_iterations": (series.rampup_iterations, "step", "set apart"),
        "starts": (series.starts, "start", f"{series.repeated} iterations ran again"),
    }
    return {
        name: Figure(
            value=value,
            unit=unit,
            basis="measured",
            convention=convention.name if name.endswith("_useful") else "",
            origin=why,
        )
        for name, (value, unit, why) in values.items()
    }


def _about_series(series: LogSeries) -> list[str]:
    sentences = []
    if series.everything_set_apart:
        sentences.append(
            "every line is warm-up, skipped or ramp-up: the figures rest on all of them, and are "
            "no steady state; give a longer log or --warmup-iterations 0."
        )
    if series.repeated:
        sentences.append(
            f"the log holds {series.starts} starts and {series.repeated} iterations that ran "
            f"again: their time is spent, their tokens are not new."
        )
    return sentences


def _losses(job: Job, lines: Sequence[LogLine], convention: Convention) -> list[LossRow]:
    """The loss along the log, at a few points, with what had been spent by then."""
    per_token = useful_flops(job, convention) / job.layout.tokens_per_step
    rows, wall_ms, samples = [], 0.0, 0
    for start in split_starts(lines):
        for line, iterations in zip(start, iterations_behind(start), strict=True):
            wall_ms += iterations * line.duration_ms
            samples += iterations * batch(job, line)
            tokens = (line.consumed_samples or samples) * job.layout.seq_length
            if line.loss is not None:
                rows.append(
                    LossRow(
                        iteration=line.iteration,
                        loss=line.loss,
                        tokens=tokens,
                        wall_time_s=wall_ms / 1e3,
                        useful_flops=whole_or_nearest(per_token * tokens),
                    )
                )
    step = -(-len(rows) // MOST_LOSSES) or 1
    return rows[::-step][::-1]
