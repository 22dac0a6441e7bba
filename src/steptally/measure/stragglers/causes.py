"""What may have made a step late: a suspicion, until the replay shows what mending it brings."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from steptally.measure.stragglers.own_time import OwnTimes, own_times
from steptally.measure.stragglers.program import Program
from steptally.measure.stragglers.replay import Booleans, Durations, ReplayGraph
from steptally.measure.stragglers.whereabouts import Place

# A verdict must bring back this part of the step: as much as the replay may be off.
LEAST_OF_STEP = 0.02


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A program with the durations that causes are looked for in, and the fair ones.

    `before` is the situation as it was recorded, once something is mended in this one: what is
    mended no longer varies, so noise is that of the recording.
    """

    graph: ReplayGraph
    durations: Durations
    fair: Durations
    before: Situation | None = None

    @property
    def program(self) -> Program:
        """What the ranks did."""
        return self.graph.program

    @property
    def as_recorded(self) -> Situation:
        """The situation with nothing mended."""
        return self.before or self

    @cached_property
    def own(self) -> OwnTimes:
        """Each rank's own time per step."""
        return self.own_in()

    def own_in(self, phase: str | None = None) -> OwnTimes:
        """The same of one phase. What made heads late is older than the recording, and left out."""
        delay = np.where(self.graph.heads, 0, self.durations.delay)
        return own_times(self.program, replace(self.durations, delay=delay), phase)

    def rows_of(self, ranks: Collection[int]) -> Booleans:
        """The operations of these ranks."""
        return np.asarray(self.program.operations["rank"].is_in(list(ranks)).to_numpy())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A suspicion: the operations `rows` would take `fair` if it were mended.

    `after` is all operations once it is, for the search to go on: as `fair` in `rows` unless given.

    `factor` is what they take over what their peers take, `least` the least factor that could be
    told from noise, and `least_of_step` the part of the step that mending it must bring back to be
    worth a verdict. `weakest` is the factor of the least slow of several that are mended together:
    each alone goes before. `phase` is the pass that alone is slower, empty for both.
    """

    verdict: str
    place: Place
    rows: Booleans
    fair: Durations
    factor: float
    least: float
    phase: str = ""
    least_of_step: float = LEAST_OF_STEP
    evidence: tuple[str, ...] = ()
    after: Durations | None = None
    weakest: float | None = None

    @property
    def certainty(self) -> float:
        """How far beyond noise the factor is, in least effects."""
        factor = self.factor if self.weakest is None else self.weakest
        return math.log(max(factor, 1.0)) / math.log(max(self.least, 1.001))
