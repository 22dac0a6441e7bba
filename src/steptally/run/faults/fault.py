"""What can be injected: one frozen description for each kind of fault. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

FORWARD, BACKWARD = "forward", "backward"
PHASES = (FORWARD, BACKWARD)
AXES = ("tp", "dp", "ep", "cp", "pp")
ANY_RANK = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, with the words that asked for it."""

    kind: ClassVar[str]
    spec: str

    def as_json(self) -> dict[str, Any]:
        """Its row of the manifest: `kind`, `spec`, and each value that this fault has."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is not None
        }
        return {"kind": self.kind, **values}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank(Fault):
    """A rank's compute takes `factor` times as long; in one phase only where `phase` names it."""

    kind: ClassVar[str] = "slow-rank"
    rank: int
    factor: float
    phase: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStage(Fault):
    """The same for every rank of one pipeline stage (Megatron's pipeline rank)."""

    kind: ClassVar[str] = "slow-stage"
    stage: int
    factor: float
    phase: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink(Fault):
    """Communication over a parallel axis, or between two ranks, takes longer.

    Either `factor` times as long, or `duration_ns` longer. One of `axis` and `ranks` is set.
    """

    kind: ClassVar[str] = "slow-link"
    axis: str | None = None
    ranks: tuple[int, int] | None = None
    factor: float | None = None
    duration_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStall(Fault):
    """A rank's data iterator blocks before the first micro-batch of every `every`-th step."""

    kind: ClassVar[str] = "data-stall"
    rank: int
    duration_ns: int
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Fault):
    """A rank's main thread stands still once in every `every`-th step.

    `rank` is None where each of these steps draws its own.
    """

    kind: ClassVar[str] = "gc-pause"
    rank: int | None
    duration_ns: int
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImbalancedExperts(Fault):
    """The router of every rank sends this share of its tokens to one expert."""

    kind: ClassVar[str] = "imbalanced-experts"
    expert: int
    share: float
