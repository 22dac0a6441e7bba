"""From suspicions to verdicts: what, once mended in the replay, brings lost time back.

The cause that recovers most is taken first and mended; the others are looked at again in what is
left, until none recovers a notable part. So a victim, whose lateness goes with the cause's, is
never named, and two causes at once are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptally.measure.stragglers.causes import Cause, pause_causes, worker_causes
from steptally.measure.stragglers.excess import excess_delays
from steptally.measure.stragglers.ideal import ideal, mended, slowdown
from steptally.measure.stragglers.imbalance import sequence_causes, stage_causes
from steptally.measure.stragglers.links import link_causes
from steptally.measure.stragglers.program import Integers, Program
from steptally.measure.stragglers.replay import (
    Durations,
    ReplayGraph,
    measured_step_times,
    recorded,
    replay_graph,
)
from steptally.tally.straggler_rows import ReplayRow, VerdictRow

# A verdict must bring back this part of the step: as much as the replay may be off.
LEAST_OF_STEP = 0.02
MOST_VERDICTS = 8
# Mending a cause leaves this many replays at most: the largest suspicions come first.
MOST_REPLAYED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A recording's verdicts and what they rest on. Times in ns, by step."""

    verdicts: tuple[VerdictRow, ...]
    slowdown: float
    replay: tuple[ReplayRow, ...]
    replay_error: float
    detectable: float
    graph: ReplayGraph
    durations: Durations
    fair: Durations


def judge(program: Program) -> Judgement:
    """Replay a program, and name what made it late. Raises `InputError` where it has no order."""
    graph = replay_graph(program)
    whole = recorded(graph)
    undelayed = graph.step_times(whole.without_delays())
    durations = Durations(work=whole.work, delay=excess_delays(graph, whole))
    fair = ideal(graph, durations)
    step_ns, ideal_ns = graph.step_times(durations), graph.step_times(fair)
    measured = measured_step_times(program)
    verdicts = _verdicts(program, graph, durations, fair, ideal_ns)
    return Judgement(
        verdicts=verdicts,
        slowdown=slowdown(step_ns, ideal_ns),
        replay=_replay_rows(program, measured, step_ns, undelayed, ideal_ns),
        replay_error=float(np.mean(undelayed) / np.mean(measured) - 1),
        detectable=_detectable(program, durations),
        graph=graph,
        durations=durations,
        fair=fair,
    )


def _verdicts(
    program: Program, graph: ReplayGraph, durations: Durations, fair: Durations, ideal_ns: Integers
) -> tuple[VerdictRow, ...]:
    recorded_ns = graph.step_times(durations)
    now, now_ns = durations, recorded_ns
    found: list[VerdictRow] = []
    while len(found) < MOST_VERDICTS:
        best, best_ns, best_durations = None, now_ns, now
        for cause in _causes(program, now, fair)[:MOST_REPLAYED]:
            without = mended(now, cause.fair, cause.rows)
            without_ns = graph.step_times(without)
            if np.mean(without_ns) < np.mean(best_ns):
                best, best_ns, best_durations = cause, without_ns, without
        gain = np.mean(now_ns) - np.mean(best_ns)
        if best is None or gain < LEAST_OF_STEP * np.mean(recorded_ns):
            break
        found.append(_row(best, now_ns, best_ns, recorded_ns, ideal_ns))
        now, now_ns = best_durations, best_ns
    return tuple(found)


def _causes(program: Program, durations: Durations, fair: Durations) -> list[Cause]:
    """All suspicions, those of the largest factor first."""
    every = [
        *worker_causes(program, durations, fair),
        *stage_causes(program, durations, fair),
        *sequence_causes(program, durations),
        *pause_causes(program, durations),
        *link_causes(program, durations),
    ]
    return sorted(every, key=lambda cause: -(cause.factor or 0.0))


def _row(
    cause: Cause, before_ns: Integers, after_ns: Integers, recorded_ns: Integers, ideal_ns: Integers
) -> VerdictRow:
    lost = np.mean(recorded_ns) - np.mean(ideal_ns)
    gain = np.mean(before_ns) - np.mean(after_ns)
    return VerdictRow(
        verdict=cause.verdict,
        coordinates=cause.place.coordinates,
        ranks=cause.place.ranks,
        host=cause.place.host,
        device=cause.place.device,
        share_recovered=float(gain / lost) if lost > 0 else None,
        recovered_ns=round(float(gain)),
        factor=cause.factor,
        detectable=cause.least,
        phase=cause.phase,
        evidence=cause.evidence,
    )


def _replay_rows(
    program: Program,
    measured: Integers,
    replayed: Integers,
    undelayed: Integers,
    ideal_ns: Integers,
) -> tuple[ReplayRow, ...]:
    return tuple(
        ReplayRow(
            step=step,
            measured_ns=int(measured[i]),
            replayed_ns=int(replayed[i]),
            undelayed_ns=int(undelayed[i]),
            ideal_ns=int(ideal_ns[i]),
            error=float(undelayed[i] / measured[i] - 1) if measured[i] else 0.0,
            slowdown=float(replayed[i] / ideal_ns[i]) if ideal_ns[i] else 1.0,
        )
        for i, step in enumerate(program.steps)
    )


def _detectable(program: Program, durations: Durations) -> float:
    """The least factor by which a rank must be slower than its peers to be told from noise."""
    from steptally.measure.stragglers.own_time import effect, own_times

    own = own_times(program, durations.delay)
    slow = effect(own.whole / own.peers(own.whole))
    return float(np.nanmedian(slow.least))
