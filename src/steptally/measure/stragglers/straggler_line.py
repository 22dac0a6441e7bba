"""The line that Megatron-LM's own detector logs (`--log-straggler`): extremes with their ranks.

Form, from `StragglerDetector.report` in megatron/core/utils.py and README_STRAGGLER.md:
`| MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | … | MxDRtt/Rnk: 34.65ms/3 | …`. Rtt is the time
of the traced operations per iteration, DRtt the longest get_batch; power is NVML's milliwatts,
printed as W. Etpt (TFLOP/s) is not used: it is derived from Rtt and a factor of 3 for backward.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from steptally.measure.stragglers.conclusions import (
    CAUSE_COVERAGE,
    WARN_SHARE,
    Conclusions,
    impact_word,
    percent,
)
from steptally.tally.straggler_rows import VerdictRow

FIELD = re.compile(
    r"\b(?P<end>Mn|Mx)(?P<what>Rtt|DRtt|Pwr|Tmp|Utl|Clk|Etpt)/Rnk:\s*"
    r"(?P<value>[-+.\deE]+?)(?:ms|us|W|C|%|MHz|TF)/(?P<rank>\d{1,9})\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """One quantity of one report: its least and greatest value, and the ranks that have them."""

    least: float
    least_rank: int
    most: float
    most_rank: int


Report = dict[str, Extremes]


def read_straggler_lines(lines: Iterable[str]) -> list[Report]:
    """The reports of a log; each maps a quantity (`Rtt`, `DRtt`, `Clk`, …) to its extremes.

    >>> read_straggler_lines(["| MnRtt/Rnk: 10.0ms/8 | MxRtt/Rnk: 12.0ms/0 |"])[0]["Rtt"].most_rank
    0
    """
    return [report for line in lines if "Rtt/Rnk:" in line and (report := _report(line))]


def conclude_from_straggler_lines(reports: Sequence[Report]) -> Conclusions:
    """Whether one rank is the slowest in most reports, and by enough.

    Only the two extremes are known, so the slowest is held against the fastest. A tensor-parallel
    group is slow together: its ranks wait for each other inside the traced operations.
    """
    reports = [report for report in reports if "Rtt" in report and report["Rtt"].most > 0]
    timed = [report["Rtt"] for report in reports]
    if not timed:
        return Conclusions()
    slowest, times = Counter(rtt.most_rank for rtt in timed).most_common(1)[0]
    share = median((rtt.most - rtt.least) / rtt.most for rtt in timed)
    facts = (
        f"traced operations take {median(r.least for r in timed):.2f} ms on the fastest and "
        f"{median(r.most for r in timed):.2f} ms on the slowest rank (medians of {len(timed)} "
        f"reports), a difference of {percent(share)}"
    )
    if share < WARN_SHARE:
        note = f"no straggler by Megatron's detector: {facts}, {impact_word(share)}."
        return Conclusions(notes=(note, *_loading_note(reports)), peers_compared=True)
    if times < CAUSE_COVERAGE * len(timed):
        row = VerdictRow(
            verdict="not-identifiable",
            evidence=(
                f"{facts}, but no rank is the slowest in {CAUSE_COVERAGE:.0%} of them "
                f"(rank {slowest} in {times}).".replace("% of", " % of"),
            ),
        )
        return Conclusions(verdicts=(row,))
    return Conclusions(verdicts=(_slowest(reports, slowest, times, facts, share),))


def _slowest(
    reports: Sequence[Report], rank: int, times: int, facts: str, share: float
) -> VerdictRow:
    """The verdict on the slowest rank: data loading where that explains the difference."""
    timed = [report["Rtt"] for report in reports]
    excess = median(rtt.most - rtt.least for rtt in timed)
    loading = [r["DRtt"] for r in reports if "DRtt" in r and r["DRtt"].most_rank == rank]
    reading = median([d.most - d.least for d in loading]) if loading else 0.0
    if len(loading) >= CAUSE_COVERAGE * len(timed) and reading >= CAUSE_COVERAGE * excess:
        verdict, why = "data-loading", f"its get_batch takes {reading:.2f} ms longer"
    else:
        verdict, why = "slow-worker", _hardware(reports, rank)
    return VerdictRow(
        verdict=verdict,
        ranks=(rank,),
        factor=1 / (1 - share) if share < 1 else None,
        evidence=(
            (
                f"{facts}: {impact_word(share)}; rank {rank} is the slowest in {times} of "
                f"{len(timed)}."
            ),
            *((f"{why[0].upper()}{why[1:]}.",) if why else ()),
            (
                "Ranks of one tensor-parallel group wait for each other in it: the cause may be "
                "any of that group."
            ),
        ),
    )


def _hardware(reports: Sequence[Report], rank: int) -> str:
    """Whether the slowest rank also has the lowest clock or the highest temperature."""
    clock = [r["Clk"] for r in reports if "Clk" in r and r["Clk"].least_rank == rank]
    if len(clock) >= CAUSE_COVERAGE * len(reports):
        return (
            f"it also has the lowest clock ({median(c.least for c in clock):.0f} of "
            f"{median(c.most for c in clock):.0f} MHz)"
        )
    hot = [r["Tmp"] for r in reports if "Tmp" in r and r["Tmp"].most_rank == rank]
    if len(hot) >= CAUSE_COVERAGE * len(reports):
        return f"it is also the hottest ({median(t.most for t in hot):.0f} °C)"
    return ""


def _loading_note(reports: Sequence[Report]) -> tuple[str, ...]:
    loading = [r for r in reports if "DRtt" in r]
    if not loading:
        return ()
    most = median(r["DRtt"].most for r in loading)
    share = median(r["DRtt"].most / r["Rtt"].most for r in loading)
    return (
        (
            f"the longest get_batch is {most:.2f} ms, {percent(share)} of the traced operations: "
            f"{impact_word(share)}."
        ),
    )


def _report(line: str) -> Report:
    ends: dict[str, dict[str, tuple[float, int]]] = {}
    for found in FIELD.finditer(line):
        try:
            value = float(found["value"])
        except ValueError:
            continue
        ends.setdefault(found["what"], {})[found["end"]] = (value, int(found["rank"]))
    return {
        what: Extremes(
            least=pair["Mn"][0],
            least_rank=pair["Mn"][1],
            most=pair["Mx"][0],
            most_rank=pair["Mx"][1],
        )
        for what, pair in ends.items()
        if len(pair) == 2
    }
