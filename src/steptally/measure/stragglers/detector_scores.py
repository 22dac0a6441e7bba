"""The report of another straggler detector: NVIDIA's resiliency extension (NVRx), in a log.

Form, as Megatron-Bridge and NeMo log it (NVIDIA-NeMo/Megatron-Bridge#2114):

    GPU relative performance:
      Rank=0 Node=22ca9bdcfc9a Score=0.95

A score is the time of the reference over the rank's own: 0.5 is twice as slow. The reference of a
*relative* score is the fastest rank, of an *individual* one the rank's own best past
(nvidia-resiliency-ext, straggler_det/usage_guide). Both detectors' default threshold is 0.7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from steptally.measure.stragglers.conclusions import Conclusions
from steptally.tally.straggler_rows import VerdictRow

THRESHOLD = 0.7
HEADER = re.compile(r"(?P<what>[\w.`'/-]+)\s+(?P<kind>relative|individual) performance\b", re.I)
SCORE = re.compile(r"\bRank=(?P<rank>\d{1,9})\s+Node=(?P<node>\S+)\s+Score=(?P<score>\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One rank's score in one report. `what` is `GPU`, or a section; the score may be NaN."""

    what: str
    kind: str
    rank: int
    node: str
    score: float


def read_scores(lines: Iterable[str]) -> list[ScoreRow]:
    """Every score of a log, in its order.

    >>> read_scores(["GPU relative performance:", "  Rank=0 Node=a Score=0.95"])[0].score
    0.95
    """
    rows: list[ScoreRow] = []
    what, kind = "GPU", "relative"
    for line in lines:
        if found := SCORE.search(line):
            score = _score(found["score"])
            rows.append(
                ScoreRow(
                    what=what, kind=kind, rank=int(found["rank"]), node=found["node"], score=score
                )
            )
        elif found := HEADER.search(line):
            what, kind = found["what"], found["kind"].lower()
    return rows


def conclude_from_scores(rows: Sequence[ScoreRow]) -> Conclusions:
    """What the relative scores say; individual ones say who changed, not who is behind.

    All NaN is no result: the detector saw no kernels. Ranks at or above the threshold are none.
    """
    relative = [row for row in rows if row.kind == "relative"]
    if not relative:
        return Conclusions()
    known = [row for row in relative if math.isfinite(row.score)]
    if not known:
        return Conclusions(verdicts=(_saw_nothing(relative),))
    lost = len(relative) - len(known)
    losses = (f"{lost} of {len(relative)} relative scores are NaN, and are left out",) * bool(lost)
    middle = {
        rank: median(row.score for row in known if row.rank == rank)
        for rank in sorted({row.rank for row in known})
    }
    nodes = {row.rank: row.node for row in known}
    verdicts = tuple(
        _slow(rank, nodes[rank], score, len(middle))
        for rank, score in sorted(middle.items(), key=lambda item: item[1])
        if score < THRESHOLD
    )
    worst = min(middle, key=lambda rank: middle[rank])
    note = (
        f"no straggler by the detector: the lowest relative score of {len(middle)} ranks is "
        f"{middle[worst]:.2f} (rank {worst}), not below its threshold of {THRESHOLD}; a rank less "
        f"than {1 / THRESHOLD:.2f}x as slow as the fastest is not told."
    )
    return Conclusions(
        verdicts=verdicts,
        notes=() if verdicts else (note,),
        lost=losses,
        detectable=1 / THRESHOLD,
        peers_compared=True,
    )


def _saw_nothing(rows: Sequence[ScoreRow]) -> VerdictRow:
    ranks = len({row.rank for row in rows})
    return VerdictRow(
        verdict="not-identifiable",
        evidence=(
            (
                f"All {len(rows)} relative scores of {ranks} ranks are NaN: the detector saw no "
                "kernels, which does not mean that there is no straggler."
            ),
            (
                "The function that trains is not wrapped, or the wrapped one is not called "
                "(Megatron-Bridge before #2114): wrap the train step, and call what that returns."
            ),
        ),
    )


def _slow(rank: int, node: str, score: float, ranks: int) -> VerdictRow:
    return VerdictRow(
        verdict="slow-worker",
        ranks=(rank,),
        host=node,
        factor=1 / score if score > 0 else None,
        detectable=1 / THRESHOLD,
        evidence=(
            (
                f"rank {rank} on {node} has a relative score of {score:.2f} among {ranks} ranks, "
                f"below the detector's threshold of {THRESHOLD} (its median over reports)."
            ),
        ),
    )


def _score(text: str) -> float:
    try:
        return float(text.rstrip(",;"))
    except ValueError:
        return math.nan
