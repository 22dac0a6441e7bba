"""Traces of several ranks as one program: each rank's own work, cut where it meets the others.

Own time is all of a rank's step but exposed communication: computing, launching, loading, standing
still. It is cut where the rank enters a collective, where a wait for one ends, and where forward
and backward change. So each piece starts when what it needs is there, and the replay of the pieces
is the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from steptally.measure.stragglers.clock import Clocks
from steptally.measure.stragglers.experts import expert_bytes
from steptally.measure.stragglers.program import (
    BACKWARD,
    FORWARD,
    OPERATIONS,
    Integers,
    Program,
    Worker,
    continued,
)
from steptally.measure.stragglers.recording import RankRecording
from steptally.measure.stragglers.replay import Booleans
from steptally.trace.intervals import Intervals, clip, covered_before, merge, subtract

# A pass shorter than this part of its rank's longest is a rest between two messages.
LEAST_PASS = 0.2


def program_of_recordings(
    recordings: Sequence[RankRecording], members: pl.DataFrame, clocks: Clocks
) -> Program:
    """One program of ranks whose collectives are paired (`members`, a frame of `MEMBERS` with the
    columns enter_ns and leave_ns still on own clocks)."""
    instances = members.select("rank", "row", "instance")
    pieces, before, after, offset = [], [], [], 0
    for recording in recordings:
        paired = instances.filter(pl.col("rank") == recording.rank)
        rows = recording.communications.with_row_index("row").with_columns(
            rank=pl.lit(recording.rank, pl.Int64), row=pl.col("row").cast(pl.Int64)
        )
        # Nobody waits in a group of one rank: what it does there is its own.
        rows = rows.filter((pl.col("members").list.len() > 1).fill_null(True))
        rows = clocks.common(rows).join(paired.drop("rank"), on="row", how="left")
        for timeline in _timelines(recording, rows, clocks):
            table, first, second = _cut(timeline)
            pieces.append(table)
            before.append(first + offset)
            after.append(second + offset)
            offset += len(table)
    operations = _with_shares(_with_passes(pl.concat(pieces)))
    loads = expert_bytes(recordings, members)
    program = Program(
        operations=operations.select(pl.col(n).cast(t) for n, t in OPERATIONS.items()),
        before=np.concatenate(before),
        after=np.concatenate(after),
        workers={
            one.rank: Worker(
                rank=one.rank, coordinates=one.coordinates, host=one.host, device=one.device
            )
            for one in recordings
        },
        expert_bytes=loads,
    )
    return continued(program)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timeline:
    """One rank's step on the common clock: collectives by entering, computing, backward.

    `model_ns` is where the model begins, None where that is not known.
    """

    rank: int
    step: int
    start_ns: int
    end_ns: int
    rows: pl.DataFrame
    compute: Intervals
    backward: Intervals
    model_ns: int | None


def _timelines(recording: RankRecording, rows: pl.DataFrame, clocks: Clocks) -> list[_Timeline]:
    def common(intervals: Intervals) -> Intervals:
        return clocks.common_times(recording.rank, intervals)

    compute, backward = common(recording.compute), common(recording.backward)
    windows = common(recording.steps.select("start_ns", "end_ns").to_numpy())
    found = []
    for step, (start, end) in zip(recording.steps["step"], windows.tolist(), strict=True):
        own = rows.filter(
            (pl.col("step") == step) & (pl.col("enter_ns") < end) & (pl.col("leave_ns") > start)
        )
        model = recording.model_begins.get(step)
        found.append(
            _Timeline(
                rank=recording.rank,
                step=step,
                start_ns=start,
                end_ns=end,
                rows=own.with_columns(pl.col("enter_ns", "leave_ns").clip(start, end)).sort(
                    "enter_ns", "leave_ns"
                ),
                compute=clip(compute, start, end),
                backward=clip(backward, start, end),
                model_ns=None if model is None else int(common(np.array([[model, model]]))[0, 0]),
            )
        )
    return found


def _cut(timeline: _Timeline) -> tuple[pl.DataFrame, Integers, Integers]:
    """The rank's step as operations, and which must come before which (rows of this table).

    Own work first, in order, then the collectives.
    """
    enter = timeline.rows["enter_ns"].to_numpy()
    leave = timeline.rows["leave_ns"].to_numpy()
    exposed = subtract(merge(enter, leave), timeline.compute)
    ends_wait = _covers(exposed, leave - 1)
    own = _own_work(timeline, enter, np.sort(leave[ends_wait]), exposed)
    count = len(own)
    collectives = _collectives(timeline)
    starts, stops = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    chain = np.stack((np.arange(count - 1), np.arange(1, count)), axis=1)
    # What was done when the rank entered: the last piece that ended by then.
    done = np.searchsorted(stops, enter, side="right") - 1
    entering = np.stack((done, count + np.arange(enter.size)), axis=1)[done >= 0]
    # A piece that starts where a wait ended has waited for that collective.
    waiting = np.searchsorted(starts, leave, side="left")
    held = ends_wait & (waiting < count)
    held[held] &= starts[waiting[held]] == leave[held]
    waits = np.stack((count + np.arange(enter.size), waiting), axis=1)[held]
    edges = np.concatenate((chain, entering, waits, _in_lanes(timeline.rows, count)))
    return pl.concat([own, collectives]), edges[:, 0], edges[:, 1]


def _own_work(
    timeline: _Timeline, enter: Integers, waits_end: Integers, exposed: Intervals
) -> pl.DataFrame:
    """The pieces of own time between cuts; a wait inside one is none of it."""
    start, end = timeline.start_ns, timeline.end_ns
    # Whole numbers throughout: times since 1970 lose a quarter of a microsecond as floats.
    model = np.array([] if timeline.model_ns is None else [timeline.model_ns], dtype=np.int64)
    cuts = np.concatenate(([start], enter, waits_end, timeline.backward.ravel(), model, [end]))
    cuts = np.unique(np.clip(cuts, start, end)).astype(np.int64)
    begin, stop = cuts[:-1], cuts[1:]
    length = np.diff(cuts - covered_before(exposed, cuts))
    busy = np.diff(covered_before(timeline.compute, cuts))
    # Work comes before a wait that ends the piece, and after one that it begins in.
    waited_first = _covers(exposed, begin) & ~np.isin(stop, waits_end)
    begin = np.where(waited_first, stop - length, begin)
    real = (length > 0) | np.isin(cuts[:-1], waits_end)
    last_backward = timeline.backward[-1, 1] if len(timeline.backward) else None
    middle = (cuts[:-1] + cuts[1:]) // 2
    return pl.DataFrame(
        {
            "rank": timeline.rank,
            "step": timeline.step,
            "lane": "main",
            "phase": _phases(timeline, middle, last_backward),
            "part": ["data" if model.size and at < model[0] else "" for at in middle.tolist()],
            "start_ns": begin,
            "end_ns": begin + length,
            "busy_ns": busy,
            "name": "",
            "axis": "",
            "instance": None,
        },
        schema=_PIECES,
    ).filter(pl.Series(real))


_PIECES = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "lane": pl.String(),
    "phase": pl.String(),
    "part": pl.String(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "busy_ns": pl.Int64(),
    "name": pl.String(),
    "axis": pl.String(),
    "instance": pl.Int64(),
}


def _phases(timeline: _Timeline, middle: Integers, last_backward: int | None) -> list[str]:
    """Backward inside its runs, forward before the last of them, and neither after (optimizer)."""
    if last_backward is None:
        return [""] * middle.size
    inside = _covers(timeline.backward, middle)
    before = np.where(middle < last_backward, FORWARD, "")
    return [str(phase) for phase in np.where(inside, BACKWARD, before)]


def _collectives(timeline: _Timeline) -> pl.DataFrame:
    rows = timeline.rows
    axis = pl.coalesce("axis", "group", pl.lit(""))
    return rows.select(
        rank=pl.lit(timeline.rank),
        step=pl.lit(timeline.step),
        lane=pl.format("collectives {}", "lane"),
        phase=pl.lit(""),
        part=pl.lit(""),
        start_ns="enter_ns",
        end_ns="leave_ns",
        busy_ns=pl.lit(None),
        # What moves as many bytes is alike: a gradient's all-reduce is none of a norm's.
        name=pl.format("{} {}{}", "collective", axis, pl.format(" {} B", "bytes").fill_null("")),
        axis=axis,
        instance="instance",
    ).cast(_PIECES)  # type: ignore[arg-type]


def _in_lanes(rows: pl.DataFrame, offset: int) -> Integers:
    """Each collective after the one before it in its lane, if that had ended."""
    ordered = rows.with_columns(at=pl.int_range(pl.len()) + offset)
    chained = ordered.with_columns(
        before=pl.col("at").shift(1).over("lane"), ended=pl.col("leave_ns").shift(1).over("lane")
    ).filter(pl.col("ended") <= pl.col("enter_ns"))
    return chained.select("before", "at").to_numpy().astype(np.int64)


def _with_passes(table: pl.DataFrame) -> pl.DataFrame:
    """With `operation`, `position`, and `microbatch`: the number of the pass, by phase.

    A pass ends where the phase changes, or where a message of the pipeline is issued. What is left
    between two messages is no pass.
    """
    keys = ["rank", "step"]
    main = pl.col("lane") == "main"
    table = table.with_row_index("row").with_columns(
        operation=pl.when(~main)
        .then("name")
        .when(pl.col("part") == "data")
        .then(pl.lit("data"))
        .when(pl.col("phase") == "")
        .then(pl.lit("outside of passes"))
        .otherwise("phase"),
    )
    ordered = table.sort(*keys, "start_ns", "row").with_columns(
        message=(pl.col("axis").str.contains("pp") & ~main).cum_sum().over(keys)
    )
    passes = ordered.filter(main).with_columns(run=pl.struct("operation", "message").rle_id())
    passes = passes.with_columns(length=pl.col("busy_ns").sum().over(*keys, "run"))
    longest = pl.col("length").max().over(*keys, "operation")
    passes = passes.filter(
        (pl.col("length") >= LEAST_PASS * longest) & pl.col("phase").is_in([FORWARD, BACKWARD])
    )
    number = (pl.col("run").rank("dense").over(*keys, "phase") - 1).alias("microbatch")
    numbered = table.join(passes.select("row", number), on="row", how="left").sort("row")
    return numbered.with_columns(
        position=pl.int_range(pl.len()).over(*keys, "operation", order_by="start_ns"),
        chunk=pl.lit(None),
    )


def _with_shares(table: pl.DataFrame) -> pl.DataFrame:
    """With `share`: what part of the rank's time in this operation per step this piece usually is.

    Over the steps in which the rank has as many pieces; equal parts where it has none.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    usual = table.with_columns(usual=length.mean().over("rank", "operation", "position"))
    whole = pl.col("usual").sum().over("rank", "step", "operation")
    return usual.with_columns(share=pl.when(whole > 0).then(pl.col("usual") / whole))


def _covers(intervals: Intervals, times: Integers) -> Booleans:
    """Whether a set covers each time."""
    return np.asarray(np.searchsorted(intervals.ravel(), times, side="right") % 2 == 1)
