"""What the summary's keys are called for people, and in which order they are read."""

from __future__ import annotations

from steptally.report.quantity import printable
from steptally.tally import Figure, Tally

# The first of these that a tally holds are what a reader looks for: they lead the report.
LABELS = {
    "slowdown": "slowdown S",
    "lost_time_s": "lost time a step",
    "step_time_s": "step time",
    "step_time_min_s": "step time, fastest",
    "step_time_max_s": "step time, slowest",
    "tokens_per_s": "tokens per second",
    "tokens_per_s_per_device": "tokens per second and device",
    "mfu": "MFU",
    "hfu": "HFU",
    "mfu_exact_causal": "MFU by the exact count",
    "tokens_per_step": "tokens per step",
    "flops_per_step_useful": "useful FLOPs per step",
    "flops_per_step_executed": "executed FLOPs per step",
    "flops_per_step_executed_predicted": "executed FLOPs per step, predicted",
    "flops_per_token_useful": "useful FLOPs per token",
    "parameters_total": "parameters",
    "parameters_active": "active parameters",
    "compute_share": "compute, share of step",
    "exposed_communication_share": "exposed communication, share",
    "idle_share": "idle, share of step",
    "hidden_communication_share": "communication hidden, share",
    "cpu_bound_share": "waiting for the host, share",
    "graph_recoverable_share": "a CUDA graph could save at most",
    "graph_speedup_max": "speed-up of a CUDA graph, at most",
    "short_kernels_share": "compute kernels under 10 µs",
    "contention_factor": "GEMMs under communication",
    "tracing_cost": "tracing cost",
    "replay_error": "replay, off the measured step by",
    "detectable_factor": "least factor that could be told",
    "loss_first": "first loss",
    "loss_last": "last loss",
    "parameters_matmul_active": "active parameters in matrix products",
    "logged_tflops_per_device": "TFLOP/s per device, as logged",
    "logged_convention": "convention that reproduces the log",
    "flops_per_s_per_device_useful": "useful FLOP/s per device",
    "flops_per_s_per_device_executed": "executed FLOP/s per device",
    "elementwise_flops_per_step": "elementwise FLOPs per step",
    "peak_memory_bytes_max": "peak memory, largest rank",
    "first_step_peak_memory_bytes_max": "peak memory, first step",
    "checkpoint_peak_memory_bytes_max": "peak memory, checkpoint save",
    "device_memory_needed_bytes_max": "memory a device must have",
    "memory_margin_bytes": "memory to spare",
    "fits": "fits in memory",
}
HEADLINES = (
    "slowdown",
    "lost_time_s",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "mfu",
    "hfu",
    "flops_per_step_useful",
    "peak_memory_bytes_max",
    "parameters_total",
    "fits",
)
# What a key ends in where the figure's own unit already says it.
UNIT_SUFFIXES = ("_bytes", "_s", "_ns", "_flops")


def label(key: str) -> str:
    """A key's name for people; a key that is not known here is spelled out.

    >>> label("mfu"), label("tracing_cost_s")
    ('MFU', 'tracing cost')
    """
    if key in LABELS:
        return LABELS[key]
    for suffix in UNIT_SUFFIXES:
        if key.endswith(suffix) and not key.endswith("_per_s"):
            key = key.removesuffix(suffix)
            break
    return printable(key).replace("_", " ").replace("flops", "FLOPs")


def ordered_figures(tally: Tally) -> list[tuple[str, Figure]]:
    """Every figure of the summary: the known ones in reading order, each other beside its kin."""
    order = [key for key in LABELS if key in tally.summary]
    for key in tally.summary:
        if key not in order:
            order.insert(_place_beside_kin(key, order), key)
    return [(key, tally.summary[key]) for key in order]


def headlines(tally: Tally, most: int = 6) -> list[tuple[str, Figure]]:
    """The few figures to read first."""
    found = [(key, tally.summary[key]) for key in HEADLINES if key in tally.summary]
    return found[:most]


def _place_beside_kin(key: str, order: list[str]) -> int:
    """After the last key that shares most leading words: `step_time_spread` after `step_time_s`."""
    shared = [_shared_words(key, other) for other in order]
    if not any(shared):
        return len(order)
    return len(shared) - shared[::-1].index(max(shared))


def _shared_words(first: str, second: str) -> int:
    count = 0
    for one, other in zip(first.split("_"), second.split("_"), strict=False):
        if one != other:
            break
        count += 1
    return count
