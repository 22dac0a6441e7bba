"""Recordings of several ranks, simulated: who enters and leaves which collective, on which clock.

Times are nanoseconds. A rank computes, enters, and leaves with all others of the collective when
the last has entered and the data have moved.
"""

import random
from dataclasses import dataclass, field

import polars as pl

from steptally.measure.stragglers.recording import COMMUNICATIONS, STEPS, RankRecording
from steptally.trace.intervals import merge

EPOCH = 1_790_000_000 * 10**9
TP, DP = "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP"
AXES = {TP: "tp", DP: "dp", "default_pg": None}


@dataclass
class Collective:
    """One collective as it was: enter and leave of each member, on the true clock."""

    group: str
    members: tuple
    kind: str
    step: int
    enter: dict = field(default_factory=dict)
    leave: dict = field(default_factory=dict)


def groups_of(ranks, tp):
    """The groups of `ranks` ranks: tp neighbours, dp across, and all."""
    tps = [tuple(range(first, first + tp)) for first in range(0, ranks, tp)]
    dps = [tuple(range(place, ranks, tp)) for place in range(tp)]
    return {TP: tps, DP: dps, "default_pg": [tuple(range(ranks))]}


def train(
    ranks=4, tp=2, steps=3, each_step=4, seed=0, kinds=("all-reduce",), jitter=2_000,
    compute=(200_000, 900_000), transfer=80_000, slow=None,
):  # fmt: skip
    """The collectives of a job, in order; `slow` is a rank that computes twice as long."""
    drawn = random.Random(seed)
    groups = groups_of(ranks, tp)
    now = dict.fromkeys(range(ranks), 0)
    found = []
    for step in range(steps):
        plan = [TP] * each_step * (tp > 1) + [DP] * (ranks > tp) + ["default_pg"]
        for number, name in enumerate(plan):
            for rank in now:
                now[rank] += drawn.randint(*compute) * (2 if rank == slow else 1)
            for members in groups[name]:
                one = Collective(name, members, kinds[number % len(kinds)], step)
                last = max(now[rank] for rank in members)
                for rank in members:
                    one.enter[rank] = now[rank]
                    one.leave[rank] = last + transfer + drawn.randint(0, jitter)
                    now[rank] = one.leave[rank]
                found.append(one)
    return found


def recordings(
    collectives, *, offsets=None, drifts=None, numbered=True, named=True, hosts=None, lost=(),
    stepped=True,
):  # fmt: skip
    """What each rank records of it: on its own clock, without the (rank, number) in `lost`.

    `named` tells groups and `numbered` their sequence.
    """
    ranks = sorted({rank for one in collectives for rank in one.members})
    offsets, drifts, hosts = offsets or {}, drifts or {}, hosts or {}
    made = []
    for rank in ranks:

        def own(time, rank=rank):
            return EPOCH + offsets.get(rank, 0) + time + round(drifts.get(rank, 0) * time)

        rows, counts, number = [], {}, 0
        for one in collectives:
            if rank not in one.members:
                continue
            key = (one.group, one.members)
            counts[key] = counts.get(key, -1) + 1
            number += 1
            if (rank, number - 1) in lost:
                continue
            rows.append(
                {
                    "step": one.step if stepped else 0,
                    "lane": "0:7",
                    "collective": one.kind,
                    "group": one.group if named else None,
                    "axis": AXES.get(one.group) if named else None,
                    "members": list(one.members) if named else None,
                    "sequence": counts[key] if numbered and named else None,
                    "bytes": 4096,
                    "enter_ns": own(one.enter[rank]),
                    "leave_ns": own(one.leave[rank]),
                }
            )
        made.append(recording(rank, rows, hosts.get(rank)))
    return made


def recording(rank, rows, host=None, compute=None):
    """A rank's recording from rows of its communications; it computes between them."""
    frame = pl.DataFrame(rows, schema=dict(COMMUNICATIONS)).sort("enter_ns", maintain_order=True)
    if compute is None:
        edges = [*frame["leave_ns"]][:-1], [*frame["enter_ns"]][1:]
        compute = merge(*edges)
    return RankRecording(
        rank=rank,
        source=f"rank{rank}",
        communications=frame,
        steps=pl.DataFrame(schema=dict(STEPS)),
        compute=compute,
        host=host,
    )


def row(group, members, enter, leave, *, step=0, kind="all-reduce", sequence=None, **told):
    """One row of a rank's communications."""
    return {
        "step": step,
        "lane": "0:7",
        "collective": kind,
        "group": group,
        "axis": AXES.get(group),
        "members": None if members is None else list(members),
        "sequence": sequence,
        "enter_ns": enter,
        "leave_ns": leave,
        **told,
    }


def true_waits(collectives):
    """Each rank's wait in each of its collectives, in order, on the true clock."""
    waits = {}
    for one in collectives:
        last = max(one.enter.values())
        for rank in one.members:
            waits.setdefault(rank, []).append(last - one.enter[rank])
    return waits


def true_last(collectives):
    """How often each rank was the last to enter."""
    counts = {rank: 0 for one in collectives for rank in one.members}
    for one in collectives:
        counts[max(one.members, key=lambda rank: one.enter[rank])] += 1
    return counts
