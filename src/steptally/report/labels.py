"""What the summary's keys are called for people, and in which order they are read."""

from __future__ import annotations

from steptally.report.quantity import printable
from steptally.tally import Figure, Tally

# The first of these that a tally holds are what a reader looks for: they lead the report.
LABELS = {
    "step_time_s": "step time",
    "tokens_per_s": "tokens per second",
    "tokens_per_s_per_device": "tokens per second and device",
    "mfu": "MFU",
    "hfu": "HFU",
    "tokens_per_step": "tokens per step",
    "flops_per_step_useful": "useful FLOPs per step",
    "flops_per_step_executed": "executed FLOPs per step",
    "flops_per_token_useful": "useful FLOPs per token",
    "parameters_total": "parameters",
    "parameters_active": "active parameters",
    "peak_memory_bytes_max": "peak memory, largest rank",
    "fits": "fits in memory",
}
HEADLINES = (
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
    """Every figure of the summary: the known ones in reading order, then the others as given."""
    known = [key for key in LABELS if key in tally.summary]
    others = [key for key in tally.summary if key not in LABELS]
    return [(key, tally.summary[key]) for key in _beside_their_kin(known, others)]


def headlines(tally: Tally, most: int = 6) -> list[tuple[str, Figure]]:
    """The few figures to read first."""
    found = [(key, tally.summary[key]) for key in HEADLINES if key in tally.summary]
    return found[:most]


def _beside_their_kin(known: list[str], others: list[str]) -> list[str]:
    """Put `step_time_spread_s` after `step_time_s`, and what has no kin at the end."""
    order = list(known)
    for key in others:
        stems = [name for name in known if key.startswith(_stem(name) + "_")]
        kin = max(stems, key=lambda name: len(_stem(name)), default=None)
        if kin is None:
            order.append(key)
            continue
        place = order.index(kin) + 1
        while place < len(order) and order[place] in others:
            place += 1
        order.insert(place, key)
    return order


def _stem(key: str) -> str:
    for suffix in UNIT_SUFFIXES:
        if key.endswith(suffix) and not key.endswith("_per_s"):
            return key.removesuffix(suffix)
    return key
