"""Workers are given to the groups whose queues they served, or to none: never to another.

Queues are simulated as ProcessGroupGloo works: one main thread issues collectives of several
groups, each group's workers take them first in, first out.
"""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from steptally.trace.gloo_signatures import Signature
from steptally.trace.gloo_workers import Issue, Transfer, assign_workers, match

# Few sizes, so that the groups' transfers look alike more often than not.
SIGNATURES = [Signature("gloo:all_reduce", size, "float32") for size in (1, 2)]
SIGNATURES.append(Signature("gloo:all_gather", 1, "float32"))


@dataclass
class Simulated:
    """What a trace would show, and which group each thread really served."""

    issues: dict[str, list[Issue]]
    workers: dict[int, list[Transfer]]
    truth: dict[int, str]


@st.composite
def simulations(draw, signatures_of=lambda group: SIGNATURES):
    groups = [f"group {number}" for number in range(draw(st.integers(1, 3)))]
    workers_each = draw(st.integers(1, 2))
    threads = {g: [10 * n + w for w in range(workers_each)] for n, g in enumerate(groups)}
    free_at = {thread: 0 for own in threads.values() for thread in own}
    simulated = Simulated({group: [] for group in groups}, {}, {})
    now = 0
    for collective in range(draw(st.integers(1, 25))):
        now += draw(st.integers(0, 30))
        group = draw(st.sampled_from(groups))
        signature = draw(st.sampled_from(signatures_of(group)))
        simulated.issues[group].append(Issue(collective, now, signature))
        thread = min(threads[group], key=lambda thread: free_at[thread])
        # A worker that took its work from the queue may lose its core before it begins.
        start = max(now, free_at[thread]) + draw(st.sampled_from([0, 1, 2, 100]))
        free_at[thread] = start + draw(st.integers(1, 40))
        transfer = Transfer(collective, start, signature)
        simulated.workers.setdefault(thread, []).append(transfer)
        simulated.truth[thread] = group
    return simulated


@given(simulations())
def test_no_worker_is_given_to_a_group_that_it_did_not_serve(simulated):
    for thread, group in assign_workers(simulated.workers, simulated.issues).items():
        assert group == simulated.truth[thread]


@given(simulations(lambda group: [Signature("gloo:all_reduce", int(group[-1]), "float32")]))
def test_groups_that_move_different_sizes_are_always_told_apart(simulated):
    assert assign_workers(simulated.workers, simulated.issues) == simulated.truth


@given(simulations())
def test_each_transfer_of_a_group_is_matched_with_an_issue_of_its_own_kind_and_not_a_later_one(
    simulated,
):
    for group, issues in simulated.issues.items():
        own = [thread for thread, served in simulated.truth.items() if served == group]
        transfers = [transfer for thread in own for transfer in simulated.workers[thread]]
        matched = match(transfers, issues)
        assert len({position for _, position in matched}) == len(transfers)
        for transfer, position in matched:
            assert issues[position].signature == transfer.signature
            assert issues[position].issued_ns <= transfer.start_ns


def test_two_groups_that_do_the_same_at_the_same_time_stay_open():
    signature = SIGNATURES[0]
    issues = {"a": [Issue(0, 0, signature)], "b": [Issue(1, 0, signature)]}
    workers = {1: [Transfer(0, 5, signature)], 2: [Transfer(1, 5, signature)]}
    assert assign_workers(workers, issues) == {}


def test_a_transfer_that_began_before_a_groups_issue_excludes_that_group():
    signature = SIGNATURES[0]
    issues = {"a": [Issue(0, 0, signature)], "b": [Issue(1, 10, signature)]}
    workers = {1: [Transfer(0, 5, signature)], 2: [Transfer(1, 12, signature)]}
    assert assign_workers(workers, issues) == {1: "a", 2: "b"}


def test_too_many_possibilities_leave_the_workers_open_and_do_not_hang():
    signature = SIGNATURES[0]
    issues = {group: [Issue(n, 0, signature) for n in range(30)] for group in "abcdef"}
    workers = {thread: [Transfer(thread, 5, signature)] for thread in range(30)}
    assert assign_workers(workers, issues) == {}
