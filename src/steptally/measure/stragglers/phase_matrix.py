"""A phase table as arrays: what each rank spent on its own work, on data and in waiting phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.measure.stragglers.phase_table import POINT_TO_POINT, PhaseTable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMatrix:
    """Milliseconds by section, each an array of iterations × ranks; NaN where not recorded.

    `own` and `data` do not overlap each other, `visible` are the sections that hold waiting.
    `step_ms` is the step, `step_is` says what it was taken from. `pipelined`: stages pass tensors,
    so that ranks of different stages are no peers.
    """

    ranks: tuple[int, ...]
    iterations: int
    own: Mapping[str, Floats]
    data: Mapping[str, Floats]
    visible: Mapping[str, Floats]
    step_ms: float
    step_is: str
    pipelined: bool

    def total(self, parts: Mapping[str, Floats]) -> Floats:
        """The sum of some sections, iterations × ranks; zeros where there are none."""
        shape = (self.iterations, len(self.ranks))
        return sum(parts.values(), np.zeros(shape))

    @property
    def work(self) -> Mapping[str, Floats]:
        """Own sections and data sections together: all that a rank does without waiting."""
        return {**self.own, **self.data}


def phase_matrix(table: PhaseTable) -> PhaseMatrix:
    """Lay a table out; sections that hold others are taken apart or left out.

    `batch-generator` runs inside `forward-compute`, `optimizer-*` inside `optimizer`. Where no
    section holds waiting by name, plain `backward` does: DDP reduces gradients in it.
    """
    sections = _arrays(table.times)
    by_kind: dict[str, dict[str, Floats]] = {"own": {}, "data": {}, "synchronous": {}, "whole": {}}
    for name, values in sections.items():
        by_kind.setdefault(table.kind(name), {})[name] = values
    own, data, waiting = by_kind["own"], by_kind["data"], by_kind["synchronous"]
    step_ms, step_is = _step(table, by_kind)
    if "forward-compute" in own and "batch-generator" in data:
        inside = np.nan_to_num(data["batch-generator"])
        own["forward-compute"] = np.maximum(own["forward-compute"] - inside, 0)
    if any(name.startswith("optimizer-") for name in sections):
        own.pop("optimizer", None)
    if not waiting and "backward" in own and "backward" not in table.kinds:
        waiting = {"backward": own.pop("backward")}
    pipelined = any(POINT_TO_POINT.search(name.lower()) for name in waiting)
    visible = {name: v for name, v in waiting.items() if not POINT_TO_POINT.search(name.lower())}
    return PhaseMatrix(
        ranks=tuple(sorted(table.times["rank"].unique().to_list())),
        iterations=max((len(values) for values in sections.values()), default=0),
        own=own,
        data=data,
        visible=visible,
        step_ms=step_ms,
        step_is=step_is,
        pipelined=pipelined,
    )


def over_iterations(values: Floats) -> Floats:
    """The median over iterations, per rank; 0 where a rank has none."""
    if not len(values):
        return values
    known = np.where(np.isnan(values).all(axis=0), 0.0, values)
    return np.asarray(np.nanmedian(known, axis=0))


def _arrays(times: pl.DataFrame) -> dict[str, Floats]:
    """Iterations × ranks per section. A rank that never runs a section spends 0 in it."""
    ranks = np.sort(times["rank"].unique().to_numpy())
    frame = times.with_columns(pl.col("iteration").fill_null(-1))
    iterations = np.sort(frame["iteration"].unique().to_numpy())
    arrays = {}
    for (name,), part in frame.group_by("section", maintain_order=True):
        values = np.full((len(iterations), len(ranks)), np.nan)
        rows = np.searchsorted(iterations, part["iteration"].to_numpy())
        columns = np.searchsorted(ranks, part["rank"].to_numpy())
        values[rows, columns] = part["ms"].to_numpy()
        values[:, np.isnan(values).all(axis=0)] = 0.0
        arrays[str(name)] = values
    return arrays


def _step(table: PhaseTable, by_kind: Mapping[str, Mapping[str, Floats]]) -> tuple[float, str]:
    """The step's time, from the best that is there, and what that was."""
    if table.step_ms:
        return table.step_ms, "the logged iteration time"
    whole = dict(by_kind["whole"])
    inner = whole.pop("forward-backward", None)
    if whole:
        name = next(iter(whole))
        return _slowest([whole[name]]), f"`{name}`"
    optimizer = [v for name, v in by_kind["own"].items() if name.startswith("optimizer")]
    outer = by_kind["own"].get("optimizer")
    if inner is not None:
        return _slowest([inner, *([outer] if outer is not None else optimizer)]), (
            "`forward-backward` and the optimizer"
        )
    parts = [v for kind in ("own", "data", "synchronous") for v in by_kind[kind].values()]
    return _slowest(parts), "the sum of the recorded phases"


def _slowest(parts: Sequence[Floats]) -> float:
    """The rank with most time, over the sum of some sections."""
    total = sum((over_iterations(values) for values in parts), np.zeros(1))
    return float(np.max(total)) if len(total) else 0.0
