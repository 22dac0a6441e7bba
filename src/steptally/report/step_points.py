"""The steps of a run, one point each: the slowest rank's wall, and the loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from steptally.tally import StepRow, Tally

_Point = TypeVar("_Point")

KINDS = {
    "counted": "counted (untraced, after warm-up)",
    "traced": "traced",
    "warm-up": "warm-up",
    "incomplete": "not finished by every rank",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One optimizer step: `wall_ns` is the wall of `slowest_rank`; `loss` None if none kept it."""

    step: int
    wall_ns: int
    slowest_rank: int
    kind: str
    loss: float | None


def step_points(tally: Tally) -> list[StepPoint]:
    """One point a step, in order; `kind` is one of `KINDS`.

    The loss is the first that a rank kept: only the last pipeline stage computes it. A step that
    not every rank finished (a killed run's last) is `incomplete`: its slowest rank is not known.
    """
    rows = [row for row in tally.accounts.get("steps", ()) if isinstance(row, StepRow)]
    by_step: dict[int, list[StepRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.step, row.rank)):
        by_step[row.step].append(row)
    world = len({row.rank for row in rows})
    return [_point(step, ranks, world) for step, ranks in by_step.items()]


def _point(step: int, ranks: list[StepRow], world: int) -> StepPoint:
    slowest = max(ranks, key=lambda row: row.duration_ns)
    losses = (row.loss for row in ranks if row.loss is not None)
    return StepPoint(
        step=step,
        wall_ns=slowest.duration_ns,
        slowest_rank=slowest.rank,
        kind=_kind(ranks, world),
        loss=next(losses, None),
    )


def _kind(ranks: list[StepRow], world: int) -> str:
    if len(ranks) < world:
        return "incomplete"
    if any(row.warmup for row in ranks):
        return "warm-up"
    return "traced" if any(row.traced for row in ranks) else "counted"


def counted_points(points: Sequence[StepPoint]) -> list[StepPoint]:
    """The steps that the step time rests on; where there is none, all that every rank finished."""
    counted = [point for point in points if point.kind == "counted"]
    return counted or [point for point in points if point.kind != "incomplete"] or list(points)


def losses(points: Sequence[StepPoint]) -> list[tuple[int, float]]:
    """(step, loss) of the steps whose loss some rank kept."""
    return [(point.step, point.loss) for point in points if point.loss is not None]


def losses_in_words(curve: Sequence[tuple[int, float]]) -> str:
    """The first, the last and the lowest loss of a curve that is not empty."""
    (first_step, first), (last_step, last) = curve[0], curve[-1]
    low_step, low = min(curve, key=lambda point: point[1])
    return (
        f"{first:.4f} at step {first_step}, {last:.4f} at step {last_step}; "
        f"lowest {low:.4f} at step {low_step}"
    )


def thinned(points: Sequence[_Point], most: int) -> list[_Point]:
    """At most about `most` points: every n-th one, and the last."""
    stride = -(-len(points) // most) if most else 1
    kept = list(points[:: max(1, stride)])
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


def steps_in_words(points: Sequence[StepPoint]) -> str:
    """How many steps there are, and which of them the step time rests on."""
    counts = {kind: sum(point.kind == kind for point in points) for kind in KINDS}
    words = [f"{count} {KINDS[kind]}" for kind, count in counts.items() if count]
    return f"{len(points)} step{'s' * (len(points) != 1)}: {', '.join(words)}"
