"""Traces of several ranks as one program: what is own work, what is a wait, and the same step."""

from dataclasses import replace

import polars as pl
import pytest

from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.own_time import own_times
from steptally.measure.stragglers.recording import STEPS, RankRecording
from steptally.measure.stragglers.replay import measured_step_times, recorded, replay_graph
from steptally.measure.stragglers.search import search_recordings
from steptally.measure.stragglers.segments import program_of_recordings
from steptally.trace.intervals import merge
from straggler_recordings import EPOCH, recordings, row, train

US = 1_000


def stepped(made, steps):
    """With the steps that the collectives tell: each from where the one before ends."""
    found = []
    for one in made:
        rows = one.communications
        ends = rows.group_by("step").agg(pl.col("leave_ns").max()).sort("step")["leave_ns"]
        starts = [rows["enter_ns"].min() - 900 * US, *ends[:-1]]
        windows = pl.DataFrame(
            {"step": list(range(steps)), "start_ns": starts, "end_ns": ends}, schema=dict(STEPS)
        )
        found.append(replace(one, steps=windows))
    return found


def program_of(made):
    together = on_one_clock(made)
    return program_of_recordings(made, together.pairing.members, together.clocks)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("ranks", "tp"), [(2, 1), (4, 2), (8, 2)])
def test_the_replay_of_recordings_is_their_steps(seed, ranks, tp):
    program = program_of(stepped(recordings(train(ranks=ranks, tp=tp, seed=seed)), 3))
    graph = replay_graph(program)
    assert list(graph.step_times(recorded(graph))) == list(measured_step_times(program))


def test_own_time_holds_no_wait():
    # Rank 0 enters at 100, rank 1 at 400; both leave at 450 and compute for 50 more.
    group = ("DATA_PARALLEL_GROUP", (0, 1))
    made = [
        RankRecording(
            rank=rank,
            source=f"rank{rank}",
            communications=pl.DataFrame(
                [row(*group, EPOCH + enter * US, EPOCH + 450 * US, sequence=0)],
                schema_overrides={"members": pl.List(pl.Int32)},
            ).pipe(_as_communications),
            steps=pl.DataFrame(
                {"step": [0], "start_ns": [EPOCH], "end_ns": [EPOCH + 500 * US]},
                schema=dict(STEPS),
            ),
            compute=merge([EPOCH, EPOCH + 450 * US], [EPOCH + enter * US, EPOCH + 500 * US]),
            host="one",
        )
        for rank, enter in ((0, 100), (1, 400))
    ]
    program = program_of(made)
    graph = replay_graph(program)
    own = own_times(program, recorded(graph))
    assert own.whole.tolist() == [[150 * US], [450 * US]]
    assert own.busy.tolist() == [[150 * US], [450 * US]]


def _as_communications(frame):
    from steptally.measure.stragglers.recording import COMMUNICATIONS

    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in COMMUNICATIONS.items()
    )


@pytest.mark.parametrize("slow", [0, 3])
@pytest.mark.parametrize("shift_ms", [0, 5_000])
def test_a_slow_rank_is_named_from_recordings_on_any_clocks(slow, shift_ms):
    collectives = train(ranks=4, tp=2, steps=16, slow=slow, seed=1)
    clocks = {rank: rank * shift_ms * 1_000_000 for rank in range(4)}
    found = search_recordings(stepped(recordings(collectives, offsets=clocks), 16))
    assert [one.verdict for one in found.verdicts] == ["slow-worker"]
    assert found.verdicts[0].ranks == (slow,)
    assert found.verdicts[0].factor == pytest.approx(2.0, rel=0.1)
    assert abs(found.judgement.replay_error) < 0.02


def test_a_clean_recording_has_no_verdict():
    found = search_recordings(stepped(recordings(train(ranks=4, tp=2, steps=16, seed=2)), 16))
    assert found.verdicts == ()
