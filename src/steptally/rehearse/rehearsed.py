"""What is rehearsed, and what came of it: plain data, so that it passes between processes."""

from __future__ import annotations

from dataclasses import dataclass

from steptally.rehearse.accounts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`rank` stands for all `ranks`; `pp` is their pipeline stage."""

    rank: int
    ranks: tuple[int, ...]
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A program, what it comes to in the job's step, and how many micro-batches were run."""

    program: Program
    counts: Counts
    microbatches: tuple[int, ...]
