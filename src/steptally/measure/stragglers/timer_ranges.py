"""What `--timing-log-option minmax` (the default) and `max` tell: that ranks differ, not who."""

from __future__ import annotations

import statistics
from collections import defaultdict

from steptally.measure.stragglers.conclusions import WARN_SHARE, Conclusions, impact_word, percent
from steptally.measure.stragglers.phase_table import PhaseTable, SectionRange
from steptally.tally.straggler_rows import VerdictRow

SUPPLY = (
    "Record `--timing-log-option all --timing-log-level 2`: it prints every rank's time of every "
    "phase."
)


def conclude_from_ranges(table: PhaseTable) -> Conclusions:
    """Verdicts from extremes over ranks. Data loading of all ranks is told; who is late is not."""
    if not table.ranges:
        return Conclusions(notes=(f"{table.source} holds no times of phases.",), lost=table.lost)
    sections = _by_section(table)
    step = table.step_ms or _largest(sections, ("forward-backward",))
    if not step:
        note = f"{table.source} has timers, but no step time to hold them against. {SUPPLY}"
        return Conclusions(notes=(note,), lost=table.lost)
    verdicts, differing = [], []
    for name, (lowest, highest) in sections.items():
        kind = table.kind(name)
        if kind == "data" and lowest is not None and lowest >= WARN_SHARE * step:
            verdicts.append(_loading(name, lowest, highest, step))
        elif kind in ("own", "data") and _differs(kind, lowest, highest, step):
            differing.append(_sentence(name, lowest, highest, step))
    if not differing and all(lowest is None for lowest, _ in sections.values()):
        differing.append("The log has the slowest rank's time of each phase only.")
    if differing:
        evidence = (*differing, f"Which rank it is, a log of extremes does not tell. {SUPPLY}")
        verdicts.append(VerdictRow(verdict="not-identifiable", evidence=evidence))
    notes: tuple[str, ...] = ()
    if not verdicts:
        notes = (
            (
                f"no phase differs between ranks by {percent(WARN_SHARE)} of the step of "
                f"{step:.2f} ms or more."
            ),
        )
    return Conclusions(
        verdicts=tuple(verdicts), notes=notes, lost=table.lost, peers_compared=bool(notes)
    )


def _by_section(table: PhaseTable) -> dict[str, tuple[float | None, float]]:
    """Median over iterations of each section's extremes."""
    found: dict[str, list[SectionRange]] = defaultdict(list)
    for row in table.ranges:
        found[row.section].append(row)
    return {
        name: (
            statistics.median(low)
            if (low := [r.min_ms for r in rows if r.min_ms is not None])
            else None,
            statistics.median(row.max_ms for row in rows),
        )
        for name, rows in found.items()
    }


def _largest(
    sections: dict[str, tuple[float | None, float]], names: tuple[str, ...]
) -> float | None:
    return max((sections[name][1] for name in names if name in sections), default=None)


def _differs(kind: str, lowest: float | None, highest: float, step: float) -> bool:
    """Whether ranks differ by enough of the step; of the slowest alone, only data loading tells."""
    if lowest is None:
        return kind == "data" and highest >= WARN_SHARE * step
    return highest - lowest >= WARN_SHARE * step


def _loading(name: str, lowest: float, highest: float, step: float) -> VerdictRow:
    share = lowest / step
    return VerdictRow(
        verdict="data-loading",
        evidence=(
            (
                f"`{name}` takes {lowest:.2f} to {highest:.2f} ms over ranks, {percent(share)} of "
                f"the step of {step:.2f} ms on the fastest of them: {impact_word(share)}."
            ),
        ),
    )


def _sentence(name: str, lowest: float | None, highest: float, step: float) -> str:
    if lowest is None:
        share = percent(highest / step)
        return f"`{name}` takes up to {highest:.2f} ms on the slowest rank, {share} of the step."
    return (
        f"`{name}` takes {lowest:.2f} to {highest:.2f} ms over ranks: they differ by "
        f"{percent((highest - lowest) / step)} of the step of {step:.2f} ms."
    )
