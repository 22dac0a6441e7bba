"""Which process group each of gloo's worker threads serves: a small constraint search.

Pure logic on lists, apart from `gloo`, which reads them from a trace, so that it can be tested on
simulated queues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptally.trace.gloo_signatures import Signature

# Assignments looked at before the workers that are still open stay unattributed.
_MOST_TRIED = 5_000


class Transfer(NamedTuple):
    """One `gloo:*` event of a worker: its row in the events, when it began, what it moved."""

    row: int
    start_ns: int
    signature: Signature


class Issue(NamedTuple):
    """One transfer to expect of the collective in row `collective` of the collectives table."""

    collective: int
    issued_ns: int
    signature: Signature


Workers = Mapping[int, Sequence[Transfer]]
Issues = Mapping[str, Sequence[Issue]]


def assign_workers(workers: Workers, issues: Issues) -> dict[int, str]:
    """The group of each worker thread, for those that have only one possible.

    `issues` are each group's, in the order of issue. Every transfer must find an issue of its
    group with its signature, not after its own start. Where the order of the queue can be kept as
    well, only assignments that keep it count; a damaged recording may not allow that.
    """
    possible = {
        thread: [group for group in issues if match(transfers, issues[group]) is not None]
        for thread, transfers in workers.items()
    }
    decided = {thread: groups[0] for thread, groups in possible.items() if len(groups) == 1}
    open_threads = [thread for thread, groups in possible.items() if len(groups) > 1]
    for keeps_order in (True, False):
        ways = _ways(workers, issues, possible, decided, open_threads, keeps_order)
        if ways:
            return decided | {
                thread: groups.pop() for thread, groups in ways.items() if len(groups) == 1
            }
    return decided


def match(
    transfers: Sequence[Transfer], issues: Sequence[Issue]
) -> list[tuple[Transfer, int]] | None:
    """Each transfer with the position of its issue; None where one has no issue before it.

    The transfers of one signature are taken in the order of their issues.
    """
    positions: dict[Signature, list[int]] = defaultdict(list)
    for position, issue in enumerate(issues):
        positions[issue.signature].append(position)
    taken: dict[Signature, int] = defaultdict(int)
    matched = []
    for transfer in sorted(transfers, key=lambda transfer: transfer.start_ns):
        candidates = positions[transfer.signature]
        number = taken[transfer.signature]
        if number >= len(candidates):
            return None
        if issues[candidates[number]].issued_ns > transfer.start_ns:
            return None
        taken[transfer.signature] += 1
        matched.append((transfer, candidates[number]))
    return matched


def _ways(
    workers: Workers,
    issues: Issues,
    possible: Mapping[int, Sequence[str]],
    decided: Mapping[int, str],
    open_threads: Sequence[int],
    keeps_order: bool,
) -> dict[int, set[str]]:
    """The groups that each open worker has in some assignment of all; empty where none exists."""
    found: dict[int, set[str]] = defaultdict(set)
    tried = 0
    pending = [dict(decided)]
    while pending:
        assignment = pending.pop()
        tried += 1
        if tried > _MOST_TRIED:
            return {thread: set(possible[thread]) for thread in open_threads}
        depth = len(assignment) - len(decided)
        if depth == len(open_threads):
            if all(_serves(workers, issues, assignment, group, keeps_order) for group in issues):
                for thread in open_threads:
                    found[thread].add(assignment[thread])
            continue
        thread = open_threads[depth]
        for group in possible[thread]:
            longer = {**assignment, thread: group}
            if _serves(workers, issues, longer, group, keeps_order=False):
                pending.append(longer)
    return found


def _serves(
    workers: Workers,
    issues: Issues,
    assignment: Mapping[int, str],
    group: str,
    keeps_order: bool,
) -> bool:
    """Whether the workers that a group was given can have carried out its issues."""
    threads = [thread for thread, own in assignment.items() if own == group]
    transfers = [transfer for thread in threads for transfer in workers[thread]]
    matched = match(transfers, issues[group])
    if matched is None:
        return False
    # Each other worker may hold one earlier collective that it has not begun yet (a thread can
    # lose its core at any point), so a transfer overtakes that many at most.
    most_overtaken = len(threads) - 1
    return not keeps_order or all(
        position - number <= most_overtaken for number, (_, position) in enumerate(matched)
    )
