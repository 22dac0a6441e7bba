"""Finds the process group of every gloo transfer, which the trace itself does not tell.

Three facts lead from a transfer (`gloo:all_reduce`, the real work) back to the recorder's tag of
the collective that issued it, and so to its group:

* send and receive run on the thread that issues them and begin inside their tag;
* all else runs on worker threads, each of which serves exactly one process group;
* a group's workers take its collectives from one queue, first in, first out.

So workers are given to groups such that every transfer finds an issue of the same kind, size and
dtype, not after its own start, in the order of the queue. Where more than one way remains to do
that, the workers concerned stay unattributed: nothing is guessed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from steptally.trace.gloo_signatures import transfer_signature
from steptally.trace.gloo_tags import Tag, read_tags, untagged_issues
from steptally.trace.gloo_workers import Issue, Transfer, assign_workers, match


def attribute_transfers(
    events: pl.DataFrame, collectives: pl.DataFrame, operators: pl.DataFrame
) -> pl.DataFrame:
    """The events, with `group` and `collective` filled in where a transfer's tag is known."""
    if not (events["kind"] == "transfer").any():
        return events
    numbered = events.with_row_index("event").join(operators, on="event", how="left")
    transfers = numbered.filter(pl.col("kind") == "transfer").sort("start_ns")
    issues = numbered.filter(pl.col("kind") == "issue")
    tags = read_tags(numbered, collectives, issues)
    if transfers.is_empty() or not tags:
        return events
    found = _on_issuing_threads(transfers, tags)
    aside = _of_untagged_issues(transfers, tags, untagged_issues(issues, tags))
    workers = _workers(transfers.filter(~pl.col("event").is_in(aside)), tags)
    found |= _on_workers(workers, tags)
    rows, collective_rows = list(found), list(found.values())
    labels = events["group"].gather(collectives["event"].gather(collective_rows))
    return events.with_columns(
        events["group"].scatter(rows, labels), events["collective"].scatter(rows, collective_rows)
    )


def _on_issuing_threads(transfers: pl.DataFrame, tags: Sequence[Tag]) -> dict[int, int]:
    """Transfers that begin inside a tag on the tag's own thread, with its collective."""
    by_thread: dict[int, list[Tag]] = defaultdict(list)
    for tag in tags:
        by_thread[tag.thread].append(tag)
    found = {}
    for row, thread, start in transfers.select("event", "thread", "start_ns").iter_rows():
        own = by_thread.get(thread, [])
        number = bisect_right(own, start, key=lambda tag: tag.start_ns) - 1
        if number >= 0 and start < own[number].end_ns:
            found[row] = own[number].collective
    return found


def _of_untagged_issues(
    transfers: pl.DataFrame, tags: Sequence[Tag], untagged: Sequence[tuple[str, int]]
) -> list[int]:
    """The transfers of collectives that have no tag.

    Between such an issue and the next that leads to the same kind of transfer there is one.
    """
    issued: dict[str, list[int]] = defaultdict(list)
    for tag in tags:
        for signature in tag.signatures:
            issued[signature.transfer].append(tag.start_ns)
    for name, start in untagged:
        issued[name].append(start)
    aside = []
    for name, start in untagged:
        following = min((other for other in issued[name] if other > start), default=None)
        between = transfers.filter(
            pl.col("name") == name,
            pl.col("start_ns") >= start,
            pl.lit(True) if following is None else pl.col("start_ns") < following,
        )
        if len(between) == 1:
            aside.append(between["event"][0])
    return aside


def _workers(transfers: pl.DataFrame, tags: Sequence[Tag]) -> dict[int, list[Transfer]]:
    """The transfers of each worker thread that can be the work of some tag."""
    expected = {signature for tag in tags for signature in tag.signatures}
    with_dtype = any(signature.dtype for signature in expected)
    issuing = {tag.thread for tag in tags}
    workers: dict[int, list[Transfer]] = defaultdict(list)
    for row, thread, start, name, dimensions, types in transfers.select(
        "event", "thread", "start_ns", "name", "dimensions", "types"
    ).iter_rows():
        signature = transfer_signature(name, dimensions, types if with_dtype else None)
        if thread not in issuing and signature in expected:
            workers[thread].append(Transfer(row, start, signature))
    return workers


def _on_workers(workers: Mapping[int, list[Transfer]], tags: Sequence[Tag]) -> dict[int, int]:
    """The transfers of those workers whose group could be found, with their collectives."""
    issues: dict[str, list[Issue]] = defaultdict(list)
    for tag in tags:
        for signature in tag.signatures:
            issues[tag.group].append(Issue(tag.collective, tag.start_ns, signature))
    served: dict[str, list[Transfer]] = defaultdict(list)
    for thread, group in assign_workers(workers, issues).items():
        served[group].extend(workers[thread])
    found = {}
    for group, transfers in served.items():
        for transfer, position in match(transfers, issues[group]) or ():
            found[transfer.row] = issues[group][position].collective
    return found
