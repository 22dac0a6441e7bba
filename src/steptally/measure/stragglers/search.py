"""The search for stragglers, from recordings or op tables to all that is found.

found = search_recordings(recordings)
found = search_tables([(path, table)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from steptally.errors import InputError
from steptally.measure.steps import read_steps
from steptally.measure.stragglers.conclusions import join_conclusions
from steptally.measure.stragglers.instances import Pairing
from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.op_tables import program_of_tables
from steptally.measure.stragglers.peer_rows import peer_rows
from steptally.measure.stragglers.program import Program
from steptally.measure.stragglers.recording import RankRecording
from steptally.measure.stragglers.segments import program_of_recordings
from steptally.measure.stragglers.series import conclude_from_series, series_of_steps
from steptally.measure.stragglers.sources import conclude_from_file
from steptally.measure.stragglers.timers import Coordinates
from steptally.measure.stragglers.verdicts import Judgement, judge
from steptally.measure.stragglers.waits import collective_rows, last_to_enter, wait_rows, waits
from steptally.measure.stragglers.what_if import what_if_rows
from steptally.tally import ClockRow, CollectiveRow, PeerRow, VerdictRow, WaitRow, WhatIfRow
from steptally.tally.ranges import number_ranges
from steptally.trace.run_directory import RunDirectory

# More instances than this are not listed one by one: the longest waits are.
MOST_COLLECTIVES = 2_000
_ALONE = (
    "that it waits shows, for whom does not. Record every rank of the job, or one of each group at "
    "least"
)
_TIMES_OF_ALL = (
    "No rank is held against another here: one that is slow throughout does not show. Record the "
    "timers of all ranks (`--timing-log-option all --timing-log-level 2`), or traces of them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All that one search finds; `judgement` is None where there is nothing to replay."""

    judgement: Judgement | None
    verdicts: tuple[VerdictRow, ...]
    what_if: Sequence[WhatIfRow] = ()
    peers: Sequence[PeerRow] = ()
    collectives: Sequence[CollectiveRow] = ()
    waits: Sequence[WaitRow] = ()
    clock: Sequence[ClockRow] = ()
    last_to_enter: Mapping[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    notes: Sequence[str] = ()
    refusals: Sequence[str] = ()


def search_tables(
    tables: Sequence[tuple[Path, pl.DataFrame]], steps: tuple[int, int] | None = None
) -> Found:
    """What op tables of one job's pipeline show, in `steps` (first, last) or all.

    Raises `InputError` where they cannot be used.
    """
    found = _judged(program_of_tables(tables, steps))
    if found.verdicts or len(found.ranks) > 1:
        return found
    alone = f"{tables[0][0]} has operations of one rank alone: {_ALONE}"
    return replace(found, verdicts=(not_identifiable(alone),))


def search_recordings(recordings: Sequence[RankRecording]) -> Found:
    """What the recordings of several ranks show; where that is nothing, it is said why."""
    together = on_one_clock(recordings)
    pairing, clocks = together.pairing, together.clocks
    members = waits(recordings, pairing, clocks)
    refused = [refusal.sentence() for refusal in pairing.refused]
    why = _why_not(recordings, pairing)
    paired = set(pairing.members["rank"].unique())
    meeting = [one for one in recordings if one.rank in paired]
    if why is None:
        try:
            found = _judged(program_of_recordings(meeting, pairing.members, clocks))
        except InputError as error:
            why = str(error)
    if why is not None:
        found = Found(judgement=None, verdicts=(not_identifiable(why),))
    notes = [*found.notes, *together.warnings, *_apart(recordings, meeting), *_missing(recordings)]
    count = members["instance"].n_unique()
    if count > MOST_COLLECTIVES:
        notes.append(
            f"of {count:,} collectives the {MOST_COLLECTIVES:,} with the longest waits are listed"
        )
    return Found(
        judgement=found.judgement,
        verdicts=found.verdicts,
        what_if=found.what_if,
        peers=found.peers,
        collectives=collective_rows(members, MOST_COLLECTIVES),
        waits=wait_rows(members),
        clock=list(clocks.rows.values()),
        last_to_enter=last_to_enter(members),
        ranks=tuple(sorted(one.rank for one in recordings)),
        notes=notes,
        refusals=refused,
    )


def search_logs(paths: Sequence[Path], coordinates: Coordinates) -> Found:
    """What logs or tables of phases show, without anything to replay.

    Raises `InputError` for a file that holds nothing to go by.
    """
    said = join_conclusions(conclude_from_file(path, coordinates or None) for path in paths)
    verdicts = said.verdicts
    if not verdicts and not said.peers_compared:
        verdicts = (not_identifiable(*said.notes, _TIMES_OF_ALL),)
    notes = () if verdicts != said.verdicts else said.notes
    return Found(judgement=None, verdicts=verdicts, notes=[*notes, *said.lost])


def with_iteration_times(found: Found, run: RunDirectory) -> Found:
    """With what the times of the run's other steps tell: those that are neither warm-up nor traced.

    A class that the recordings have named already is not named again.
    """
    steps = read_steps(run.read_steps(), run.read_manifest()["world_size"])
    if not steps.counted:
        return found
    said = conclude_from_series(series_of_steps(steps, str(run.steps)))
    named = {verdict.verdict for verdict in found.verdicts}
    more = [one for one in said.verdicts if one.verdict not in named]
    return replace(found, verdicts=(*found.verdicts, *more), notes=[*found.notes, *said.notes])


def not_identifiable(*why: str) -> VerdictRow:
    """The verdict where the recording cannot tell."""
    return VerdictRow(verdict="not-identifiable", evidence=why)


def _judged(program: Program) -> Found:
    judgement = judge(program)
    situation = judgement.situation
    return Found(
        judgement=judgement,
        verdicts=judgement.verdicts,
        what_if=what_if_rows(situation),
        peers=peer_rows(situation),
        ranks=tuple(sorted(program.workers)),
        notes=program.notes,
    )


def _why_not(recordings: Sequence[RankRecording], pairing: Pairing) -> str | None:
    """Why nothing can be told of who waits for whom; None where it can."""
    if len(recordings) < 2:
        return f"one rank alone is recorded ({recordings[0].source}): {_ALONE}"
    if all(one.communications.is_empty() for one in recordings):
        return "no rank recorded a collective: nothing tells where they wait for each other"
    if pairing.members.is_empty():
        return (
            "no collective could be paired over the ranks, so that nothing tells who waited for "
            "whom: record with process groups (newer PyTorch), or name the job with --job"
        )
    return None


def _apart(recordings: Sequence[RankRecording], meeting: Sequence[RankRecording]) -> list[str]:
    """That ranks of no paired collective are left out: when they were late nothing tells."""
    apart = sorted({one.rank for one in recordings} - {one.rank for one in meeting})
    if not apart or not meeting:
        return []
    text = (
        f"ranks {number_ranges(apart)} are left out of the replay: none of their collectives is "
        "paired, and nothing tells who waited for them"
    )
    return [text]


def _missing(recordings: Sequence[RankRecording]) -> list[str]:
    world = max((one.world_size or 0 for one in recordings), default=0)
    if world <= len(recordings):
        return []
    return [
        (
            f"{len(recordings)} of {world:,} ranks are recorded: a collective may have waited for "
            "a rank that is not there, and no such wait is told"
        )
    ]
