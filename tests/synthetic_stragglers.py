"""Tallies as a search for stragglers fills them: PP 2 × DP 4, and any number of ranks.

The numbers are made up but hang together: rank 0 (pp 0, dp 0) takes twice its peers' time in both
passes, the other replicas wait for it in the gradients' reduction, and lost time = step − ideal.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptally.tally import (
    ClockRow,
    CollectiveRow,
    Figure,
    MemberTime,
    PeerRow,
    ReplayRow,
    Tally,
    VerdictRow,
    WaitRow,
    WhatIfRow,
)

STEPS = 4
# (operation, own time of one step on stage 0 and on stage 1 where nobody is slow), in ns.
OPERATIONS = (
    ("forward-compute", 200_000_000, 210_000_000),
    ("backward-compute", 400_000_000, 415_000_000),
    ("optimizer", 30_000_000, 30_000_000),
)
IDEAL_NS, REPLAYED_NS = 700_000_000, 1_295_000_000
REDUCTION = "nccl:reduce_scatter"


def slow_worker_tally() -> Tally:
    """One rank of eight is slow; every account is there."""
    return Tally(
        basis="measured",
        job={"name": "slow rank"},
        summary=figures(),
        accounts={
            "verdicts": [slow_worker()],
            "replay": replay_rows(),
            "what_if": what_if_rows(),
            "peers": peer_rows(places(pp=2, dp=4), slow={0: 2.0}),
            "waits": wait_rows(),
            "collectives": collective_rows(),
            "clock": clock_rows(),
        },
        warnings=("Step 3 of rank 5 ends with the recording: its last collective is cut.",),
        refusals=("The cause on the host is not known: give nvidia-smi's CSV with --side FILE.",),
    )


def quiet_tally() -> Tally:
    """The same ranks, none of them slow."""
    return Tally(
        basis="measured",
        job={"name": "nobody slow"},
        summary={**figures(), "slowdown": _figure(1.012, "×", "S = T / T_ideal", "4 steps")},
        accounts={
            "verdicts": [],
            "replay": replay_rows(),
            "peers": peer_rows(places(pp=2, dp=4), slow={}),
            "clock": [ClockRow(rank=0, offset_ns=0, drift=0.0, bound_ns=None, collectives=0)],
        },
    )


def figures() -> dict[str, Figure]:
    return {
        "slowdown": _figure(1.852, "×", "S = T / T_ideal, durations at their peers' median", ""),
        "lost_time_s": _figure(0.5965, "s", "step − ideal step, mean of 4 steps", "replay"),
        "step_time_s": _figure(1.3015, "s", "slowest rank, median of 4 steps", "8 recordings"),
        "replay_error": _figure(-0.0038, "1", "replayed / measured − 1", "4 steps"),
        "detectable_factor": _figure(1.043, "×", "one false alarm in 100 recordings", "8 ranks"),
    }


def slow_worker() -> VerdictRow:
    return VerdictRow(
        verdict="slow-worker",
        coordinates={"dp": 0, "pp": 0},
        ranks=(0,),
        host="node-a",
        device="cuda:0",
        share_recovered=0.998,
        recovered_ns=593_810_000,
        factor=2.0,
        detectable=1.043,
        evidence=(
            "own work takes 2.00 times its peers' (median of 4 steps); noise alone makes 1.04",
            "600.0 ms a step more are computing",
        ),
    )


def places(**sizes: int) -> dict[int, dict[str, int]]:
    """Coordinates by rank: the first axis runs fastest."""
    found: dict[int, dict[str, int]] = {0: {}}
    for axis, size in sizes.items():
        found = {
            place * len(found) + rank: {**coordinates, axis: place}
            for place in range(size)
            for rank, coordinates in found.items()
        }
    return found


def peer_rows(
    coordinates: Mapping[int, Mapping[str, int]],
    *,
    slow: Mapping[int, float],
    steps: int = STEPS,
    operations: tuple[tuple[str, int, int], ...] = OPERATIONS,
) -> list[PeerRow]:
    """A row for each rank, operation and step, and the median; slow ranks by factor."""
    rows = []
    for rank, place in coordinates.items():
        for name, first, last in operations:
            peers_ns = last if place.get("pp") else first
            noise = 1 + rank * 7919 % 5 / 200  # within 2 %
            own_ns = round(peers_ns * slow.get(rank, 1.0) * noise)
            rows += [
                PeerRow(
                    rank=rank,
                    coordinates=place,
                    operation=name,
                    step=step,
                    own_ns=own_ns,
                    peers_ns=peers_ns,
                    ratio=own_ns / peers_ns if peers_ns else None,
                )
                for step in (None, *range(steps))
            ]
    return rows


def replay_rows() -> list[ReplayRow]:
    return [
        ReplayRow(
            step=step,
            measured_ns=REPLAYED_NS + 5_000_000 + step * 1_000_000,
            replayed_ns=REPLAYED_NS + step * 1_000_000,
            undelayed_ns=REPLAYED_NS + step * 1_000_000,
            ideal_ns=IDEAL_NS,
            error=-0.0038,
            slowdown=(REPLAYED_NS + step * 1_000_000) / IDEAL_NS,
        )
        for step in range(STEPS)
    ]


def what_if_rows() -> list[WhatIfRow]:
    return [
        _what_if("worker", {"pp": 0, "dp": 0}, "", 593_810_000),
        _what_if("stage", {"pp": 0}, "", 594_000_000),
        _what_if("operation", {}, "backward-compute", 396_000_000),
        _what_if("dp", {"dp": 0}, "", 594_500_000),
    ]


def _what_if(
    what: str, coordinates: Mapping[str, int], operation: str, recovered_ns: int
) -> WhatIfRow:
    return WhatIfRow(
        what=what,
        coordinates=coordinates,
        operation=operation,
        mended_ns=REPLAYED_NS - recovered_ns,
        recovered_ns=recovered_ns,
        share_recovered=recovered_ns / (REPLAYED_NS - IDEAL_NS),
    )


def wait_rows() -> list[WaitRow]:
    """All wait 600 ms a step but rank 0, and on stage 1 rank 1, which waited for rank 0 before."""
    return [
        WaitRow(
            rank=rank,
            group=f"dp of pp {rank % 2}",
            axis="dp",
            instances=STEPS,
            last_to_enter=STEPS * (rank in (0, 1)),
            wait_ns=0 if rank in (0, 1) else STEPS * 600_000_000,
            transfer_ns=STEPS * 12_000_000,
            exposed_wait_ns=0 if rank in (0, 1) else STEPS * 590_000_000,
            exposed_transfer_ns=STEPS * 11_000_000,
        )
        for rank in range(8)
    ]


def collective_rows() -> list[CollectiveRow]:
    return [
        CollectiveRow(
            step=step,
            group="dp of pp 0",
            axis="dp",
            collective=REDUCTION,
            sequence=step + 1,
            bytes=134_217_728,
            last_to_enter=0,
            enter_skew_ns=600_000_000 + step * 1_000_000,
            leave_skew_ns=9_000,
            members=tuple(_member(rank, step) for rank in (0, 2, 4, 6)),
        )
        for step in range(STEPS)
    ]


def _member(rank: int, step: int) -> MemberTime:
    last = step * 1_300_000_000 + 1_200_000_000
    wait = 0 if rank == 0 else 600_000_000 + step * 1_000_000
    return MemberTime(
        rank=rank,
        entered_ns=last - wait,
        left_ns=last + 12_000_000,
        wait_ns=wait,
        transfer_ns=12_000_000,
        exposed_wait_ns=wait,
        exposed_transfer_ns=11_000_000,
    )


def clock_rows() -> list[ClockRow]:
    return [
        ClockRow(
            rank=rank,
            offset_ns=rank * 1_250_000 - 4_000_000,
            drift=rank * 1e-7,
            bound_ns=9_000,
            collectives=48,
        )
        for rank in range(8)
    ]


def _figure(value: float, unit: str, convention: str, origin: str) -> Figure:
    return Figure(value=value, unit=unit, basis="measured", convention=convention, origin=origin)
