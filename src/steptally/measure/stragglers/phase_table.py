"""Times of named phases per rank: the one table that timers, logs and other tools come to.

Columns of `PHASE_TIMES` are one row per iteration, section and rank, in milliseconds.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

PHASE_TIMES: Mapping[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "section": pl.String(),
    "rank": pl.Int64(),
    "ms": pl.Float64(),
}

# What a section's time is made of. `synchronous` time holds the wait for other ranks, `own` does
# not; `data` is own time that feeds the step; `whole` holds others; `setup` is no part of a step.
KINDS = ("own", "data", "synchronous", "whole", "setup")

# Megatron-Core 0.16.1: pipeline_parallel/{schedules,p2p_communication}.py, optimizer/*.py,
# distributed/finalize_model_grads.py; and the words of other tools. First match wins.
_RULES: tuple[tuple[str, str], ...] = (
    ("setup", r"(-setup$|^setup|checkpoint|^eval|^startup|^initiali[sz]e)"),
    (
        "whole",
        (
            r"^(interval-time|iteration|iteration[-_ ]?time|step|step[-_ ]?time|train[-_ ]?step"
            r"|total|forward-backward)$"
        ),
    ),
    ("data", r"(batch-generator|batch[-_ ]?input|data|get[-_ ]?batch|^input([-_ ]wait)?$)"),
    (
        "synchronous",
        (
            r"(recv|send|all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to"
            r"[-_ ]?all|grads?-sync|broadcast|nccl|gloo|barrier|^comm|communication|sync"
            r"|^wait)"
        ),
    ),
    # Both hold an all-reduce (of the overflow flag, of the gradient norm).
    ("synchronous", r"^optimizer-(unscale-and-check-inf|clip-main-grad)$"),
)
POINT_TO_POINT = re.compile(r"recv|send")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRange:
    """One section of one iteration where a log gives only the extremes over ranks.

    `min_ms` is None for `--timing-log-option max`.
    """

    iteration: int | None
    section: str
    min_ms: float | None
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTable:
    """Phase times of one source.

    `kinds` are what the source states of its sections (`KINDS`), over `section_kind`'s rules;
    `step_ms` is the step time where the source has it beside the sections. `hosts` are by rank.
    """

    source: str
    times: pl.DataFrame
    ranges: tuple[SectionRange, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    step_ms: float | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def kind(self, section: str) -> str:
        """What a section's time is made of: as the source states it, else by its name."""
        return self.kinds.get(section) or section_kind(section)


class PhaseRows:
    """Collects rows compactly while a source is read: a log of a thousand ranks has millions."""

    def __init__(self) -> None:
        self._iterations: list[int | None] = []
        self._sections: list[str] = []
        self._ranks = array("q")
        self._ms = array("d")

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, iteration: int | None, section: str, rank: int, ms: float) -> None:
        """One more row."""
        self._iterations.append(iteration)
        self._sections.append(section)
        self._ranks.append(rank)
        self._ms.append(ms)

    def frame(self) -> pl.DataFrame:
        """The rows so far, as `PHASE_TIMES`."""
        columns = {
            "iteration": self._iterations,
            "section": self._sections,
            "rank": pl.Series(self._ranks, dtype=pl.Int64()),
            "ms": pl.Series(self._ms, dtype=pl.Float64()),
        }
        return pl.DataFrame(columns, schema=PHASE_TIMES)


def section_kind(name: str) -> str:
    """What a section's time is made of, by its name; `own` for a name that no rule knows.

    >>> section_kind("forward-recv"), section_kind("batch-generator"), section_kind("optimizer")
    ('synchronous', 'data', 'own')
    """
    lower = name.lower()
    return next((kind for kind, rule in _RULES if re.search(rule, lower)), "own")
