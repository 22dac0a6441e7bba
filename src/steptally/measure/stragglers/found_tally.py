"""What a search for stragglers found, as a tally, and as the object that `--json` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steptally.measure.stragglers.search import Found
from steptally.measure.stragglers.verdicts import Judgement
from steptally.tally import Figure, Row, Tally

# A replay that is farther off does not tell what mending would bring.
MOST_REPLAY_ERROR = 0.02
# From this part of the step on, lost time without a cause is worth a word.
NOTABLE_LOSS = 0.05
CONVENTION = (
    "S = T / T_ideal: own work as the mean of its kind over ranks and steps, transfers as the "
    "median (arXiv:2505.05713)"
)


def straggler_tally(
    found: Found, job: Mapping[str, Any] | None = None, warnings: Sequence[str] = ()
) -> Tally:
    """The tally of one search."""
    accounts: dict[str, Sequence[Row]] = {
        "verdicts": found.verdicts,
        "replay": found.judgement.replay if found.judgement else (),
        "what_if": found.what_if,
        "peers": found.peers,
        "waits": found.waits,
        "collectives": found.collectives,
        "clock": found.clock,
    }
    return Tally(
        basis="measured",
        job=dict(job or {}),
        convention=CONVENTION if found.judgement else "",
        summary=_figures(found.judgement) if found.judgement else {},
        # No verdict is an answer too.
        accounts={name: rows for name, rows in accounts.items() if rows or name == "verdicts"},
        warnings=[*warnings, *found.notes, *_about_replay(found)],
        refusals=list(found.refusals),
    )


def straggler_json(tally: Tally, found: Found) -> dict[str, Any]:
    """The tally's object, with the keys that other programs look for beside it.

    `slowdown`, `replay_error` (None where nothing could be replayed), `verdicts` (with `class`),
    `collectives`, `last_to_enter`, `clock`. docs/schema.md lists their keys.
    """
    judgement = found.judgement
    return {
        **tally.as_json(),
        "slowdown": judgement.slowdown if judgement else None,
        "replay_error": judgement.replay_error if judgement else None,
        "verdicts": [
            {"class": row.pop("verdict"), **row}
            for row in (dataclasses.asdict(verdict) for verdict in found.verdicts)
        ],
        "collectives": [dataclasses.asdict(row) for row in found.collectives],
        "last_to_enter": {str(rank): count for rank, count in found.last_to_enter.items()},
        "clock": [dataclasses.asdict(row) for row in found.clock],
    }


def recovered_share_of_step(found: Found) -> float:
    """The part of the step that mending every named cause brings back, as `--fail-on` judges it."""
    if found.judgement is None:
        return 0.0
    step_ns = float(np.mean([row.replayed_ns for row in found.judgement.replay]))
    return sum(verdict.recovered_ns or 0 for verdict in found.verdicts) / step_ns


def _figures(judgement: Judgement) -> dict[str, Figure]:
    steps = len(judgement.replay)
    measured = float(np.mean([row.measured_ns for row in judgement.replay])) / 1e9
    replayed = float(np.mean([row.replayed_ns for row in judgement.replay])) / 1e9
    ideal = float(np.mean([row.ideal_ns for row in judgement.replay])) / 1e9
    mean = f"mean of {steps} steps"

    def figure(value: float, unit: str, convention: str, origin: str) -> Figure:
        return Figure(
            value=value, unit=unit, basis="measured", convention=convention, origin=origin
        )

    return {
        "slowdown": figure(
            judgement.slowdown, "×", CONVENTION, f"replay: {replayed:.6g} s / {ideal:.6g} s, {mean}"
        ),
        "step_time_s": figure(
            measured, "s", "first start to last end over the recorded ranks", mean
        ),
        "lost_time_s": figure(
            replayed - ideal, "s", "T − T_ideal of the same replay", f"replay, {mean}"
        ),
        "replay_error": figure(
            judgement.replay_error,
            "1",
            "replay from durations alone (no launch delays) / measured − 1",
            f"replay, {mean}",
        ),
        "detectable_factor": figure(
            judgement.detectable,
            "×",
            "least factor of a rank's own time over its peers' that is no noise, at one false "
            "alarm in a hundred recordings",
            f"spread of the ratios over {steps} steps, median over ranks",
        ),
    }


def _about_replay(found: Found) -> list[str]:
    """What to say where the replay is off, or where time is lost and nothing is to blame."""
    judgement = found.judgement
    if judgement is None:
        return []
    said = []
    if abs(judgement.replay_error) > MOST_REPLAY_ERROR:
        said.append(
            f"the replay of the recorded durations takes {judgement.replay_error:+.1%} of the "
            f"measured step (beyond ±{MOST_REPLAY_ERROR:.0%}): the rest passes between operations "
            "and is not explained by them; shares recovered are that much less sure"
        )
    lost = 1 - 1 / judgement.slowdown
    explained = recovered_share_of_step(found)
    if lost > NOTABLE_LOSS and explained < lost / 2:
        said.append(
            f"{lost:.1%} of the step is lost to operations that take longer than the mean of "
            f"their kind, and only {explained:.1%} has a cause that stands out of the noise"
        )
    return said
