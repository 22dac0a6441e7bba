"""Who is late, from the times of phases of every rank: Megatron's timers, or any tool's table.

The rank that waits least is the one the others wait for (NVIDIA/nccl#893: the shortest NCCL time),
so the culprit has the smallest time in the phases that hold waiting, and its victim is the upper
median rank (traceopt-ai/traceml#253). Where no phase tells waiting, or timers start behind a
barrier, ranks are compared by their own work. docs/stragglers-inputs.md gives the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from steptally.measure.stragglers.conclusions import (
    WARN_SHARE,
    Conclusions,
    impact_word,
    percent,
    section_names,
)
from steptally.measure.stragglers.phase_comparison import (
    FEWEST_ITERATIONS,
    compare_by_own_work,
    compare_by_wait,
)
from steptally.measure.stragglers.phase_matrix import (
    Floats,
    PhaseMatrix,
    over_iterations,
    phase_matrix,
)
from steptally.measure.stragglers.phase_table import PhaseTable
from steptally.measure.stragglers.stage_times import stage_verdict
from steptally.measure.stragglers.timer_ranges import conclude_from_ranges
from steptally.tally.straggler_rows import VerdictRow

Coordinates = Mapping[int, Mapping[str, int]]


def conclude_from_phases(table: PhaseTable, coordinates: Coordinates | None = None) -> Conclusions:
    """Verdicts from phase times per rank, or the reason why there are none.

    `coordinates` are the ranks' places on the parallel axes: a pipelined run needs them, since
    ranks of different stages are no peers.

    >>> from steptally.measure.stragglers.phase_file import read_phase_table
    >>> text = "rank,section,ms\\n0,nccl,100\\n1,nccl,101\\n2,nccl,12\\n3,nccl,99"
    >>> conclude_from_phases(read_phase_table(text, "t")).verdicts[0].ranks
    (2,)
    """
    if table.times.is_empty():
        return conclude_from_ranges(table)
    matrix = phase_matrix(table)
    found = [_data_share(matrix, table), *_compare(matrix, table, coordinates or {})]
    detectable = [part.detectable for part in found if part.detectable is not None]
    return Conclusions(
        verdicts=tuple(verdict for part in found for verdict in part.verdicts),
        notes=tuple(note for part in found for note in part.notes),
        lost=table.lost,
        detectable=max(detectable, default=None),
        peers_compared=any(part.peers_compared for part in found),
    )


def _compare(
    matrix: PhaseMatrix, table: PhaseTable, coordinates: Coordinates
) -> Sequence[Conclusions]:
    """Peer groups one by one, and stages against each other."""
    if len(matrix.ranks) < 2:
        return [Conclusions(notes=(f"{table.source} holds one rank: there are no peers.",))]
    stages = {rank: coordinates.get(rank, {}).get("pp") for rank in matrix.ranks}
    if not matrix.pipelined:
        return [_compare_peers(matrix, table, range(len(matrix.ranks)), coordinates)]
    if None in stages.values():
        return [_unknown_stages(matrix, table)]
    found = []
    for stage in sorted({stage for stage in stages.values() if stage is not None}):
        members = [at for at, rank in enumerate(matrix.ranks) if stages[rank] == stage]
        if len(members) > 1:
            found.append(_compare_peers(matrix, table, members, coordinates))
    return [*found, stage_verdict(matrix, [int(stages[rank] or 0) for rank in matrix.ranks])]


def _compare_peers(
    matrix: PhaseMatrix, table: PhaseTable, members: Sequence[int], coordinates: Coordinates
) -> Conclusions:
    by_wait = compare_by_wait(matrix, list(members)) if matrix.visible else None
    if by_wait is not None and by_wait.verdicts:
        found = by_wait
    elif matrix.work:
        own = compare_by_own_work(matrix, list(members))
        unmoved = by_wait.notes if by_wait and not own.verdicts else ()
        notes = (*unmoved, *own.notes)
        found = replace(own, notes=notes)
    else:
        unknown = f"{table.source} has neither times of waiting nor of own work for each rank."
        found = by_wait or Conclusions(notes=(unknown,))
    return replace(found, verdicts=tuple(_located(v, table, coordinates) for v in found.verdicts))


def _data_share(matrix: PhaseMatrix, table: PhaseTable) -> Conclusions:
    """Data loading that costs every rank that loads: the median one's share of the step.

    Under pipeline parallelism only the first and the last stage load.
    """
    if not matrix.data:
        return Conclusions()
    loading = matrix.total(matrix.data)
    middle = over_iterations(loading)
    taken = float(np.median(middle[middle > 0])) if (middle > 0).any() else 0.0
    share = taken / matrix.step_ms if matrix.step_ms else 0.0
    names = section_names(matrix.data)
    facts = (
        f"{names} takes {taken:.2f} ms on the median rank that loads, {percent(share)} of "
        f"the step ({matrix.step_ms:.2f} ms, {matrix.step_is})"
    )
    if share < WARN_SHARE:
        return Conclusions(notes=(f"data loading does not hold all ranks up: {facts}.",))
    evidence = [f"{facts}: {impact_word(share)}.", *_growth(loading)]
    if "batch-generator" in matrix.data:
        evidence.append(
            "Under tensor parallelism `batch-generator` also holds the wait for tensor rank 0, "
            "which reads for its group: more workers (`--num-workers`) or faster storage there."
        )
    loading_ranks = tuple(rank for rank, ms in zip(matrix.ranks, middle, strict=True) if ms > 0)
    row = VerdictRow(
        verdict="data-loading",
        ranks=loading_ranks if len(loading_ranks) < len(matrix.ranks) else (),
        evidence=tuple(evidence),
    )
    return Conclusions(verdicts=(row,))


def _growth(loading: Floats) -> list[str]:
    """Whether data loading grows: its last quarter of iterations against its first."""
    loading = loading[~np.isnan(loading).all(axis=1)]
    if len(loading) < FEWEST_ITERATIONS:
        return []
    median = np.nanmedian(loading, axis=1)
    quarter = max(1, len(median) // 4)
    first, last = float(np.median(median[:quarter])), float(np.median(median[-quarter:]))
    if first <= 0 or last < 1.5 * first:
        return []
    return [f"It grows from {first:.2f} ms in the first iterations to {last:.2f} ms in the last."]


def _unknown_stages(matrix: PhaseMatrix, table: PhaseTable) -> Conclusions:
    """A pipelined run without coordinates: who is a peer of whom is not told."""
    total = over_iterations(matrix.total(matrix.work))
    spread = float(np.max(total) - np.min(total))
    facts = (
        f"own work of the ranks in {table.source} spans {np.min(total):.2f} to "
        f"{np.max(total):.2f} ms of a step of {matrix.step_ms:.2f} ms"
    )
    if spread < WARN_SHARE * matrix.step_ms:
        note = f"no straggler: {facts}, less than {percent(WARN_SHARE)}."
        return Conclusions(notes=(note,), peers_compared=True)
    row = VerdictRow(
        verdict="not-identifiable",
        evidence=(
            (
                f"{facts}, and stages pass tensors to each other: a slow rank and a heavy stage "
                "look alike while the ranks' stages are unknown. Give the ranks' coordinates."
            ),
        ),
    )
    return Conclusions(verdicts=(row,))


def _located(row: VerdictRow, table: PhaseTable, coordinates: Coordinates) -> VerdictRow:
    """A verdict with its ranks' coordinates and host, where they are known and one."""
    hosts = {table.hosts.get(rank) for rank in row.ranks}
    host = hosts.pop() if len(hosts) == 1 else None
    return replace(row, coordinates=shared_coordinates(row.ranks, coordinates), host=host)


def shared_coordinates(ranks: Sequence[int], coordinates: Coordinates) -> dict[str, int]:
    """The axes on which ranks agree, if those name exactly them; else none.

    >>> grid = {0: {"dp": 0, "pp": 0}, 1: {"dp": 0, "pp": 1}, 2: {"dp": 1, "pp": 0}}
    >>> shared_coordinates((1,), grid), shared_coordinates((0, 2), grid)
    ({'dp': 0, 'pp': 1}, {'pp': 0})
    """
    places = [coordinates[rank] for rank in ranks if rank in coordinates]
    if not places or len(places) < len(ranks):
        return {}
    shared = {axis: at for axis, at in places[0].items() if all(p.get(axis) == at for p in places)}
    named = {
        rank
        for rank, place in coordinates.items()
        if all(place.get(axis) == at for axis, at in shared.items())
    }
    return shared if named == set(ranks) else {}
