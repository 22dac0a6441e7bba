"""Which convention makes the TFLOP/s that a log prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from steptally.job import Job
from steptally.measure.log import LogLine
from steptally.measure.log_series import LogSeries, spread, throughput_accumulates
from steptally.predict.conventions import CONVENTIONS
from steptally.predict.flops import useful_flops
from steptally.predict.utilization import TERA
from steptally.tally import Figure, LoggedRow

# A convention reproduces a log where it is as near as a figure printed to 0.1 TFLOP/s allows.
REPRODUCES = 0.005
# What Megatron itself printed at one time or another.
MEGATRON_PRINTED = ("megatron-lm", "megatron-2024")
FACTORS = (2, 4, 8)


def batch(job: Job, line: LogLine) -> int:
    """Sequences of the line's iterations: as logged, else the job's."""
    return line.global_batch_size or job.layout.global_batch_size


def tokens_per_s(job: Job, line: LogLine) -> float:
    """Tokens a second on each device, in the iterations of a line."""
    tokens = batch(job, line) * job.layout.seq_length
    return tokens / (line.duration_ms / 1e3) / job.layout.world_size


def logged_rows(job: Job, series: LogSeries) -> tuple[list[LoggedRow], list[str]]:
    """What each convention makes of the speed, nearest to the logged figure first."""
    lines = [line for line in series.steady if line.tflops_per_device]
    if not lines:
        return [], ["the log prints no TFLOP/s (--log-throughput): there is nothing to reproduce."]
    logged = spread([(line.tflops_per_device or 0) * TERA for line in lines]).median
    rows = []
    for name in CONVENTIONS:
        counted = _counted(job, lines, name)
        rows.append(
            LoggedRow(
                name=name,
                counted_flops_per_s=counted,
                logged_flops_per_s=logged,
                difference=counted / logged - 1,
            )
        )
    # Equally near to a printed figure: what Megatron itself prints goes first.
    rows.sort(key=lambda row: (round(abs(row.difference), 3), row.name not in MEGATRON_PRINTED))
    return rows, _about(job, rows, lines)


def _counted(job: Job, lines: Sequence[LogLine], name: str) -> float:
    per_token = float(useful_flops(job, CONVENTIONS[name])) / job.layout.tokens_per_step
    return per_token * spread([tokens_per_s(job, line) for line in lines]).median


def _about(job: Job, rows: Sequence[LoggedRow], lines: Sequence[LogLine]) -> list[str]:
    """Why no convention reproduces the log, where none does."""
    if abs(rows[0].difference) <= REPRODUCES:
        return []
    logged, devices = rows[0].logged_flops_per_s, job.layout.world_size
    if throughput_accumulates(lines):
        why = "cumulative FLOPs over single-interval time: its counter is never reset "
        why += "(NVIDIA/Megatron-LM#2128); MFU above is of the step time and does not use it"
        return [f"the logged TFLOP/s grow in proportion to the iteration: {why}."]
    for row in rows:
        if devices > 1 and abs((row.difference + 1) * devices - 1) <= REPRODUCES:
            each = f"{logged / TERA / devices:.1f} for each of {devices} devices"
            whole = f"the logged {logged / TERA:.1f} TFLOP/s is the whole cluster's"
            return [f"{whole} under {row.name}: {each}."]
    nearest = f"nearest is {rows[0].name} with {rows[0].difference:+.1%}"
    fits = " or ".join(_what_would_fit(job, lines, logged))
    advice = f"it would fit {fits}" if fits else "the job may not be that of this log"
    found = f"no convention reproduces the logged {logged / TERA:.1f} TFLOP/s"
    return [f"{found} within {REPRODUCES:.1%}: {nearest}; {advice}."]


def _what_would_fit(job: Job, lines: Sequence[LogLine], logged: float) -> Iterator[str]:
    """Another world size or sequence under which Megatron's own count gives the logged figure."""
    for name in MEGATRON_PRINTED:
        counted = _counted(job, lines, name)
        for factor in FACTORS:
            world_size, seq = job.layout.world_size * factor, job.layout.seq_length // factor
            if abs(counted / factor / logged - 1) <= REPRODUCES:
                yield f"{name} with world_size {world_size}"
            shorter = replace(job, layout=replace(job.layout, seq_length=seq)) if seq else job
            if abs(_counted(shorter, lines, name) / logged - 1) <= REPRODUCES:
                yield f"{name} with seq_length {seq}"
            longer_seq = job.layout.seq_length * factor
            longer = replace(job, layout=replace(job.layout, seq_length=longer_seq))
            if abs(_counted(longer, lines, name) / logged - 1) <= REPRODUCES:
                yield f"{name} with seq_length {longer_seq}"


def logged_figures(rows: Sequence[LoggedRow]) -> dict[str, Figure]:
    """The logged figure, and the convention that reproduces it (None: none does)."""
    if not rows:
        return {}
    best = rows[0]
    found = best.name if abs(best.difference) <= REPRODUCES else None
    alike = [row.name for row in rows[1:] if abs(row.difference) <= REPRODUCES]
    also = f"; so do {', '.join(alike)}" if found and alike else ""
    return {
        "logged_tflops_per_device": Figure(
            value=best.logged_flops_per_s / TERA,
            unit="TFLOP/s",
            basis="measured",
            convention=found or "",
            origin="median of what the steady lines print",
        ),
        "logged_convention": Figure(
            value=found,
            unit="convention",
            basis="measured",
            origin=f"nearest: {best.name}, {best.difference:+.2%}{also}",
        ),
    }
