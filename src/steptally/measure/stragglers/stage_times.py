"""Pipeline stages against each other, by the own work of their ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptally.measure.stragglers.conclusions import WARN_SHARE, Conclusions, impact_word, percent
from steptally.measure.stragglers.phase_matrix import PhaseMatrix, over_iterations
from steptally.tally.straggler_rows import VerdictRow


def stage_verdict(matrix: PhaseMatrix, stages: Sequence[int]) -> Conclusions:
    """Whether one stage's median rank works longer than the median stage's.

    `stages` is the stage of each of `matrix.ranks`. In 1F1B the heaviest stage sets the pace, so
    the excess counts as it is: nothing hides it.
    """
    total = over_iterations(matrix.total(matrix.work))
    places = sorted(set(stages))
    if len(places) < 2 or not matrix.work:
        return Conclusions()
    by_stage = {
        stage: float(np.median(total[[at for at, of in enumerate(stages) if of == stage]]))
        for stage in places
    }
    worst = max(by_stage, key=lambda stage: by_stage[stage])
    others = float(np.median([ms for stage, ms in by_stage.items() if stage != worst]))
    excess = by_stage[worst] - others
    share = excess / matrix.step_ms if matrix.step_ms else 0.0
    facts = (
        f"stage {worst} works {by_stage[worst]:.2f} ms, the others {others:.2f} ms (medians of "
        f"their ranks): {excess:.2f} ms, {percent(share)} of the step of {matrix.step_ms:.2f} ms"
    )
    if share < WARN_SHARE:
        return Conclusions(notes=(f"no stage imbalance: {facts}.",), peers_compared=True)
    row = VerdictRow(
        verdict="stage-imbalance",
        coordinates={"pp": worst},
        ranks=tuple(r for r, stage in zip(matrix.ranks, stages, strict=True) if stage == worst),
        factor=by_stage[worst] / others if others > 0 else None,
        evidence=(f"{facts}: {impact_word(share)}.",),
    )
    return Conclusions(verdicts=(row,))
