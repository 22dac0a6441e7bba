"""From suspicions to verdicts: what, once mended in the replay, brings lost time back.

The cause that is surest is taken first and mended; the others are looked at again in what is left,
until none recovers a notable part. So a victim, whose lateness goes with the cause's, is
never named, and two causes at once are told apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from steptally.errors import InputError
from steptally.measure.stragglers.causes import Cause, Situation
from steptally.measure.stragglers.excess import excess_delays
from steptally.measure.stragglers.experts import expert_causes
from steptally.measure.stragglers.ideal import ideal, mended, slowdown
from steptally.measure.stragglers.imbalance import sequence_causes, stage_causes
from steptally.measure.stragglers.links import link_causes, with_slow_transfers
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

# Lateness from before the recording is worth a word from this part of the step on.
NOTABLE_INHERITED = 0.05
MOST_VERDICTS = 8
# So many suspicions are replayed at most for each verdict, the surest first.
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
    """Replay a program, and name what made it late.

    Raises `InputError` where it has no order, or takes no time.
    """
    graph = replay_graph(program)
    if not (program.operations["end_ns"] > program.operations["start_ns"]).any():
        raise InputError(
            f"all of {len(program.operations):,} operations start and end at once: nothing takes "
            "time that could be lost; check the unit and the resolution of the recorded times."
        )
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
    named = set[tuple[str, tuple[int, ...]]]()
    now = situation
    while len(found) < MOST_VERDICTS:
        surest = _surest(now, float(np.mean(step_ns)), named)
        if surest is None:
            break
        cause, gained_ns = surest
        named.add((cause.verdict, cause.place.ranks))
        found.append(_row(cause, gained_ns, step_ns - ideal_ns))
        after = cause.after or mended(now.durations, cause.fair, cause.rows)
        now = replace(now, durations=after, before=now.as_recorded)
    return tuple(sorted(found, key=_most_telling))


def _most_telling(row: VerdictRow) -> tuple[bool, int]:
    """What is named before what is not, and what recovers most first."""
    return row.verdict == "not-identifiable", -(row.recovered_ns or 0)


def _surest(
    now: Situation, recorded_ns: float, named: Collection[tuple[str, tuple[int, ...]]]
) -> tuple[Cause, Integers] | None:
    """The cause that is farthest beyond noise of those that recover a notable part, and how much.

    None that is `named` already: mending leaves its rank's noise as it was.

    The surest and not the largest: once it is mended, what is left is easier to tell.
    """
    step_ns = now.graph.step_times(now.durations)
    fresh = (c for c in _causes(now) if (c.verdict, c.place.ranks) not in named)
    for cause in islice(fresh, MOST_REPLAYED):
        gained_ns = step_ns - now.graph.step_times(mended(now.durations, cause.fair, cause.rows))
        if np.mean(gained_ns) >= cause.least_of_step * recorded_ns:
            return cause, gained_ns
    return None


def _causes(situation: Situation) -> list[Cause]:
    """All suspicions, the surest first."""
    every = [
        *expert_causes(situation),
        *worker_causes(situation),
        *stage_causes(situation),
        *sequence_causes(situation),
        *pause_causes(situation),
        *link_causes(situation),
    ]
    return sorted(with_slow_transfers(every), key=lambda cause: -cause.certainty)


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
