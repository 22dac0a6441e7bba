"""Op tables of a virtual pipeline: each rank has several chunks, and messages go round."""

from pathlib import Path

import polars as pl
import pytest

from pipelines import MILLISECOND
from steptally.measure.stragglers.op_tables import program_of_tables
from steptally.measure.stragglers.verdicts import judge

COLUMNS = ["rank", "dp_rank", "stage", "step", "optype", "mb_id", "mc", "start_ns", "end_ns"]
DP, PP, CHUNKS, BATCHES, STEPS = 2, 4, 2, 4, 4
LAST = PP * CHUNKS - 1


def passes():
    forward = [("forward", k, m) for k in range(CHUNKS) for m in range(BATCHES)]
    return forward + [("backward", k, m) for k in reversed(range(CHUNKS)) for m in range(BATCHES)]


def replica(dp, step, clock, slow, empty, rows):
    """All forward passes chunk by chunk, then all backward ones; when each stage is done.

    `empty` writes messages of no time where the model begins and ends, as some recorders do.
    """
    todo, free = {p: passes() for p in range(PP)}, dict.fromkeys(range(PP), clock)
    sent = {}

    def row(stage, name, batch, chunk, start, end):
        rows.append((dp * PP + stage, dp, stage, step, name, batch, chunk, start, end))

    while any(todo.values()):
        for stage in range(PP):
            while todo[stage]:
                phase, chunk, batch = todo[stage][0]
                at = chunk * PP + stage
                source, target = (at - 1, at + 1) if phase == "forward" else (at + 1, at - 1)
                if 0 <= source <= LAST and (phase, source, batch) not in sent:
                    break
                todo[stage].pop(0)
                start = free[stage]
                if 0 <= source <= LAST:
                    issued = sent[phase, source, batch]
                    end = max(issued, start) + MILLISECOND
                    row(source % PP, f"{phase}-send", batch, source // PP, issued, end)
                    row(stage, f"{phase}-recv", batch, chunk, start, end)
                    start = end
                elif empty:
                    row(stage, f"{phase}-recv", batch, chunk, start, start)
                length = (20 if phase == "forward" else 40) * MILLISECOND
                end = start + length * (2 if slow == (dp, stage) else 1)
                row(stage, f"{phase}-compute", batch, chunk, start, end)
                free[stage] = end
                if 0 <= target <= LAST:
                    sent[phase, at, batch] = end
                elif empty:
                    row(stage, f"{phase}-send", batch, chunk, end, end)
    return free


def table(slow, empty):
    rows, clock = [], 0
    for step in range(STEPS):
        ends = [replica(dp, step, clock, slow, empty, rows) for dp in range(DP)]
        joined = max(max(free.values()) for free in ends) + MILLISECOND
        clock = joined + 5 * MILLISECOND
        for dp, free in enumerate(ends):
            for stage, start in free.items():
                place = (dp * PP + stage, dp, stage, step)
                rows.append((*place, "optimizer-clip-main-grad", -1, -1, start, joined))
                rows.append((*place, "optimizer", -1, -1, joined, clock))
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("slow", [None, (1, 2), (0, 0)])
def test_a_slow_worker_is_named_alone_with_or_without_empty_messages(slow, empty):
    judged = judge(program_of_tables([(Path("ops.parquet"), table(slow, empty))]))
    expected = [] if slow is None else [{"dp": slow[0], "pp": slow[1]}]
    assert [one.coordinates for one in judged.verdicts] == expected
    assert judged.replay_error == pytest.approx(0, abs=0.001)


def test_messages_go_round_in_a_table_that_does_not_tell_chunks():
    untold = table((1, 2), empty=False).drop("mc")
    (verdict,) = judge(program_of_tables([(Path("ops.parquet"), untold)])).verdicts
    assert verdict.coordinates == {"dp": 1, "pp": 2}


def test_steps_that_end_in_a_collective_follow_one_another():
    # No own work comes after it: what the next step waits for is the collective.
    ended = table(None, empty=False).filter(pl.col("optype") != "optimizer")
    judged = judge(program_of_tables([(Path("ops.parquet"), ended)]))
    assert judged.verdicts == ()
