"""How each rank's traced step divides, as parts of a bar: selection and sums, no analysis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from steptally.report.quantity import printable, ranges
from steptally.tally import Tally, TimeRow

SHARED = "exposed, several groups at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a rank's step, in ns; `kind` is compute, exposed, copies or idle."""

    name: str
    kind: str
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBar:
    """One rank's step: the mean over its traced steps, divided into parts."""

    rank: int
    steps: tuple[int, ...]
    span_ns: int
    parts: tuple[Part, ...]


def rank_bars(tally: Tally) -> list[RankBar]:
    """One bar a rank, by rank; every bar has the same parts in the same order.

    span = compute + exposed (each group alone, then what several groups share) + copies + idle.
    Groups are ordered by their exposed time over all ranks, the largest first.
    """
    by_rank: dict[int, list[TimeRow]] = defaultdict(list)
    exposed: Counter[str] = Counter()
    for row in tally.accounts.get("time", ()):
        if not isinstance(row, TimeRow):
            continue
        by_rank[row.rank].append(row)
        for group in row.groups:
            exposed[group.group] += group.exposed_alone_ns
    groups = [group for group, _ in exposed.most_common()]
    return [_bar(rank, by_rank[rank], groups) for rank in sorted(by_rank)]


def _bar(rank: int, rows: list[TimeRow], groups: list[str]) -> RankBar:
    alone: Counter[str] = Counter()
    for row in rows:
        for group in row.groups:
            alone[group.group] += group.exposed_alone_ns
    span = sum(row.span_ns for row in rows)
    compute = sum(row.compute_ns for row in rows)
    exposed = sum(row.exposed_ns for row in rows)
    idle = sum(row.idle_ns for row in rows)
    durations = [("compute", "compute", compute)]
    durations += [(f"exposed {printable(group)}", "exposed", alone[group]) for group in groups]
    durations += [(SHARED, "exposed", exposed - alone.total())]
    durations += [("copies", "copies", span - compute - exposed - idle), ("idle", "idle", idle)]
    parts = tuple(
        Part(name=name, kind=kind, duration_ns=max(0, duration) // len(rows))
        for name, kind, duration in durations
    )
    steps = tuple(sorted(row.step for row in rows))
    return RankBar(rank=rank, steps=steps, span_ns=span // len(rows), parts=parts)


def present_parts(bars: Sequence[RankBar]) -> list[Part]:
    """The parts that at least one rank has, as the legend lists them."""
    if not bars:
        return []
    return [
        part
        for place, part in enumerate(bars[0].parts)
        if part.kind in ("compute", "idle") or any(bar.parts[place].duration_ns for bar in bars)
    ]


def extremes(bars: Sequence[RankBar], name: str) -> tuple[int, int]:
    """The least and the most that any rank spends on a part, in ns."""
    durations = [part.duration_ns for bar in bars for part in bar.parts if part.name == name]
    return min(durations), max(durations)


def steps_of(bars: Sequence[RankBar]) -> str:
    """Which traced steps the bars are of, in words."""
    steps = sorted({step for bar in bars for step in bar.steps})
    mean = "mean of the traced steps" if len(steps) > 1 else "the traced step"
    return f"{mean} {ranges(steps)}"


def shown_bars(bars: Sequence[RankBar], most: int) -> list[RankBar]:
    """All bars, or of too many the longest and the shortest spans, by rank."""
    if len(bars) <= most:
        return list(bars)
    by_span = sorted(bars, key=lambda bar: bar.span_ns)
    kept = by_span[: most // 2] + by_span[len(by_span) - (most - most // 2) :]
    return sorted(kept, key=lambda bar: bar.rank)
