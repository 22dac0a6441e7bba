"""The steps of a recording: annotated, or found as a period of its kernels; never assumed.

Four sources, the first that is there: `ProfilerStep` annotations of the host (or NVTX ranges that
the reader knows as steps), the same drawn on the device, other annotations that count steps
(`iteration 12`, `train_step`), and a sequence of kernels that repeats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.trace.kinds import step_number
from steptally.trace.steps import step_windows

NO_STEPS = "none"
# A period must hold for nearly every kernel: a data loader may add or drop a few.
PERIODIC = 0.95
FEWEST_PERIODS = 3
SHORTEST_PERIOD = 8
MOST_CANDIDATES = 64

_COUNTS_STEPS = re.compile(
    r"^\W*(?:train(?:ing)?[ _.-]?)?(?:global[ _.-]?)?(?:iteration|iter|step)[\W_]*(\d{0,15})\W*$",
    re.IGNORECASE,
)
# Without a number `step` may be the optimizer's.
_WITHOUT_NUMBER = re.compile("train|iter", re.IGNORECASE)
_WINDOW: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSteps:
    """Windows of steps (step, start_ns, end_ns), in order, and what they rest on.

    `launched` tells whether the windows are times of the host, in which device work was launched,
    or times of the device; `is_period` that they are a repeated sequence that may be less than a
    step. Without steps `windows` is empty and `origin` is `none`.
    """

    windows: pl.DataFrame
    origin: str
    launched: bool
    is_period: bool = False


def find_steps(events: pl.DataFrame, work: pl.DataFrame) -> FoundSteps:
    """The steps of a recording, from all its events and from its device work, sorted by start."""
    annotated = step_windows(events)
    if not annotated.is_empty():
        by_torch = events.filter(pl.col("kind") == "step")["name"].str.starts_with("ProfilerStep")
        origin = "ProfilerStep annotations" if by_torch.any() else "NVTX ranges"
        return FoundSteps(windows=annotated, origin=origin, launched=True)
    for windows, origin, launched in (
        (_device_annotations(events, work), "ProfilerStep annotations of the device", False),
        (_counting_annotations(events), "annotations that count steps", True),
    ):
        if not windows.is_empty():
            return FoundSteps(windows=windows, origin=origin, launched=launched)
    starts = _periods(work)
    if starts.size == 0:
        return FoundSteps(
            windows=pl.DataFrame(schema=dict(_WINDOW)), origin=NO_STEPS, launched=False
        )
    times = work["start_ns"].to_numpy()[starts]
    return FoundSteps(
        windows=_between(np.arange(1, times.size), times),
        origin=f"a period of {starts[1] - starts[0]:,} kernels",
        launched=False,
        is_period=True,
    )


def _between(steps: npt.ArrayLike, starts: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Windows from each start to the next; there is one start more than there are steps."""
    return pl.DataFrame(
        {"step": steps, "start_ns": starts[:-1], "end_ns": starts[1:]}, schema=dict(_WINDOW)
    )


def _device_annotations(events: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """`ProfilerStep` as drawn on the device, each to the next one's start.

    Their own ends are of no use: some profilers end them with the first kernel.
    """
    drawn = events.filter(pl.col("kind") == "device_annotation")
    drawn = drawn.filter(pl.col("name").str.starts_with("ProfilerStep"))
    numbers = [step_number(name) for name in drawn["name"]]
    found = (
        drawn.select(pl.Series("step", numbers, dtype=pl.Int64), "start_ns")
        .drop_nulls("step")
        .unique("step", keep="first", maintain_order=True)
        .sort("start_ns")
    )
    if found.is_empty() or work.is_empty():
        return pl.DataFrame(schema=dict(_WINDOW))
    end = max(int(work["end_ns"].max()), int(found["start_ns"].max()) + 1)  # type: ignore[arg-type]
    return _between(found["step"], np.append(found["start_ns"].to_numpy(), end))


def _counting_annotations(events: pl.DataFrame) -> pl.DataFrame:
    """Annotations named like steps: numbered by their names, or in order of time without one."""
    # NVTX ranges may have a million names: the pattern is tried on those that it can match.
    annotations = events.filter(pl.col("kind") == "annotation").filter(
        pl.col("name").str.contains("(?i)iter|step")
    )
    names = annotations["name"].unique()
    counts = {
        name: int(found.group(1) or -1)
        for name in names
        if (found := _COUNTS_STEPS.match(name)) and (found.group(1) or _WITHOUT_NUMBER.search(name))
    }
    if not counts:
        return pl.DataFrame(schema=dict(_WINDOW))
    told = annotations.filter(pl.col("name").is_in(list(counts))).with_columns(
        step=pl.col("name").replace_strict(counts, return_dtype=pl.Int64)
    )
    numbered = told.filter(pl.col("step") >= 0)
    if numbered.is_empty():
        # Ranges of one name and thread follow each other; nested ones would be no steps.
        first = told.group_by("name", "thread").len().sort("len", "name").row(-1)
        numbered = (
            told.filter((pl.col("name") == first[0]) & pl.col("thread").eq_missing(first[1]))
            .sort("start_ns")
            .with_columns(step=pl.int_range(1, pl.len() + 1))
        )
    windows = (
        numbered.group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
    )
    apart = windows["start_ns"][1:].to_numpy() >= windows["end_ns"][:-1].to_numpy()
    return windows if apart.all() else windows.clear()


def _periods(work: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Rows of `work` at which a repeated sequence of kernels begins again; empty without one.

    The period is the shortest at which nearly every kernel has the name of the one a period
    earlier. Where in the period a step begins is a matter of choice: at the longest typical pause.
    """
    rows = np.flatnonzero(work["kind"].is_in(("compute", "communication")).to_numpy())
    kernels = work.select("name", "start_ns", "end_ns")[rows]
    period = _period(_in_order_of_appearance(kernels["name"]))
    if not period:
        return np.empty(0, dtype=np.int64)
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    pause = np.concatenate(([0], start[1:] - np.maximum.accumulate(end)[:-1]))
    whole = rows.size // period * period
    typical = np.median(pause[:whole].reshape(-1, period), axis=0)
    return rows[int(typical.argmax()) :: period]


def _in_order_of_appearance(names: pl.Series) -> npt.NDArray[np.int64]:
    """Each name as a number: 0 the first one's, 1 that of the next that is another, and so on."""
    code = names.to_physical().to_numpy()
    distinct = names.unique(maintain_order=True).to_physical().to_numpy()
    number = np.zeros(int(code.max(initial=0)) + 1, dtype=np.int64)
    number[distinct] = np.arange(distinct.size)
    appeared: npt.NDArray[np.int64] = number[code]
    return appeared


def _period(code: npt.NDArray[np.int64]) -> int:
    """The shortest period of a sequence; 0 without one, or where it is too short for a step.

    Candidates are the distances between runs of rare kernels: an optimizer's, an embedding's.
    """
    if code.size < FEWEST_PERIODS * SHORTEST_PERIOD:
        return 0
    counts = np.bincount(code)
    candidates: set[int] = set()
    for rare in np.argsort(np.where(counts >= FEWEST_PERIODS, counts, code.size + 1))[:16]:
        if counts[rare] >= FEWEST_PERIODS:
            places = np.flatnonzero(code == rare)
            apart = np.unique(places[1 : MOST_CANDIDATES // 2] - places[0])
            candidates.update(int(distance) for distance in apart)
    longest = code.size // FEWEST_PERIODS
    for period in sorted(candidates)[: 16 * MOST_CANDIDATES]:
        if period <= longest and _holds(code, period):
            return period if period >= SHORTEST_PERIOD else 0
    return 0


def _holds(code: npt.NDArray[np.int64], period: int) -> bool:
    """Whether the sequence repeats: tried on a short stretch first, which settles most cases."""
    return all(
        np.mean(part[period:] == part[:-period]) >= PERIODIC
        for part in (code[: period + 4096], code)
    )
