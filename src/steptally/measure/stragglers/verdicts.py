"""From suspicions to verdicts: what, once mended in the replay, brings lost time back.

The cause that recovers most is taken first and mended; the others are looked at again in what is
left, until none recovers a notable part. So a victim, whose lateness goes with the cause's, is
never named, and two causes at once are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.excess import excess_delays
from steptally.measure.stragglers.ideal import ideal, mended, slowdown
from steptally.measure.stragglers.imbalance import sequence_causes, stage_causes
from steptally.measure.stragglers.links import link_causes
from steptally.measure.stragglers.pauses import pause_causes
from steptally.measure.stragglers.program import Integers, Program
from steptally.measure.stragglers.replay import (
    Durations,
    measured_step_times,
    recorded,
    replay_graph,
    undelayed,
)
from steptally.measure.stragglers.workers import rank_effects, worker_causes
from steptally.tally.straggler_rows import ReplayRow, VerdictRow

# A verdict must bring back this part of the step: as much as the replay may be off.
LEAST_OF_STEP = 0.02
# Lateness from before the recording is worth a word from this part of the step on.
NOTABLE_INHERITED = 0.05
MOST_VERDICTS = 8
# Mending a cause leaves this many replays at most: the largest suspicions come first.
MOST_REPLAYED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A recording's verdicts and what they rest on.

    `slowdown` is S = T / T_ideal, `replay_error` that of the replay from durations alone, and
    `detectable` the least factor by which a rank must be slower than its peers to be told.
    """

    verdicts: tuple[VerdictRow, ...]
    slowdown: float
    replay: tuple[ReplayRow, ...]
    replay_error: float
    detectable: float
    situation: Situation


def judge(program: Program) -> Judgement:
    """Replay a program, and name what made it late. Raises `InputError` where it has no order."""
    graph = replay_graph(program)
    whole = recorded(graph)
    durations = Durations(work=whole.work, delay=excess_delays(graph, whole))
    situation = Situation(graph=graph, durations=durations, fair=ideal(graph, durations))
    verdicts = _verdicts(situation)
    rows = _replay_rows(situation, graph.step_times(undelayed(graph, whole)))
    return Judgement(
        verdicts=verdicts or _inherited(situation),
        slowdown=slowdown(
            np.array([row.replayed_ns for row in rows]), np.array([row.ideal_ns for row in rows])
        ),
        replay=rows,
        replay_error=sum(row.undelayed_ns for row in rows) / sum(row.measured_ns for row in rows)
        - 1,
        detectable=float(np.median(rank_effects(situation)["whole"].least)),
        situation=situation,
    )


def _inherited(situation: Situation) -> tuple[VerdictRow, ...]:
    """That ranks were late when the recording began, where this costs a notable part."""
    graph, delay = situation.graph, situation.durations.delay
    early = replace(situation.durations, delay=np.where(graph.heads, 0, delay))
    step_ns, early_ns = graph.step_times(situation.durations), graph.step_times(early)
    share = 1 - float(np.sum(early_ns) / np.sum(step_ns))
    if share < NOTABLE_INHERITED:
        return ()
    apart = delay[graph.heads]
    why = (
        f"{share:.1%} of the recorded time is lateness that ranks brought into the recording: "
        f"their first operations are up to {(apart.max() - apart.min()) / 1e6:,.1f} ms apart, and "
        "what made them late came before. Record more steps, or the one before"
    )
    return (VerdictRow(verdict="not-identifiable", evidence=(why,)),)


def _verdicts(situation: Situation) -> tuple[VerdictRow, ...]:
    graph = situation.graph
    step_ns, ideal_ns = graph.step_times(situation.durations), graph.step_times(situation.fair)
    found: list[VerdictRow] = []
    now, now_ns = situation, step_ns
    while len(found) < MOST_VERDICTS:
        best, after, after_ns = _best(now, now_ns)
        if best is None or np.mean(now_ns - after_ns) < LEAST_OF_STEP * np.mean(step_ns):
            break
        found.append(_row(best, now_ns - after_ns, step_ns - ideal_ns))
        now, now_ns = after, after_ns
    return tuple(found)


def _best(now: Situation, now_ns: Integers) -> tuple[Cause | None, Situation, Integers]:
    """The cause whose mending shortens the step most, and how it is then."""
    best, after, after_ns = None, now, now_ns
    for cause in _causes(now)[:MOST_REPLAYED]:
        without = mended(now.durations, cause.fair, cause.rows)
        without_ns = now.graph.step_times(without)
        if np.mean(without_ns) < np.mean(after_ns):
            best, after_ns = cause, without_ns
            after = replace(now, durations=without, before=now.as_recorded)
    return best, after, after_ns


def _causes(situation: Situation) -> list[Cause]:
    """All suspicions, those of the largest factor first."""
    every = [
        *worker_causes(situation),
        *stage_causes(situation),
        *sequence_causes(situation),
        *pause_causes(situation),
        *link_causes(situation),
    ]
    return sorted(every, key=lambda cause: -cause.factor)


def _row(cause: Cause, gained_ns: Integers, lost_ns: Integers) -> VerdictRow:
    lost, gained = float(np.mean(lost_ns)), float(np.mean(gained_ns))
    return VerdictRow(
        verdict=cause.verdict,
        coordinates=cause.place.coordinates,
        ranks=cause.place.ranks,
        host=cause.place.host,
        device=cause.place.device,
        share_recovered=gained / lost if lost > 0 else None,
        recovered_ns=round(gained),
        factor=cause.factor,
        detectable=cause.least,
        phase=cause.phase,
        evidence=cause.evidence,
    )


def _replay_rows(situation: Situation, launched_ns: Integers) -> tuple[ReplayRow, ...]:
    graph = situation.graph
    measured = measured_step_times(graph.program)
    replayed, fair = graph.step_times(situation.durations), graph.step_times(situation.fair)
    return tuple(
        ReplayRow(
            step=step,
            measured_ns=int(measured[i]),
            replayed_ns=int(replayed[i]),
            undelayed_ns=int(launched_ns[i]),
            ideal_ns=int(fair[i]),
            error=float(launched_ns[i] / measured[i] - 1) if measured[i] else 0.0,
            slowdown=float(replayed[i] / fair[i]) if fair[i] else 1.0,
        )
        for i, step in enumerate(graph.program.steps)
    )
