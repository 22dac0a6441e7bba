"""Reads the recorder's tags from a trace: what each issued collective lets expect of gloo."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import polars as pl

from steptally.trace.gloo_signatures import (
    Signature,
    issue_signatures,
    tells_dtype,
    transfer_of,
)


class Tag(NamedTuple):
    """The recorder's event around the issue of one collective."""

    thread: int
    start_ns: int
    end_ns: int
    collective: int  # its row in the collectives table
    group: str
    signatures: list[Signature]  # of the transfers to expect


def read_tags(events: pl.DataFrame, collectives: pl.DataFrame, issues: pl.DataFrame) -> list[Tag]:
    """The tags in order of time. `events` are numbered by `event`; `issues` are c10d operators."""
    placed = (
        collectives.with_row_index("row")
        .join(events.select("event", "kind", "thread", "start_ns", "end_ns"), on="event")
        .filter(pl.col("kind") == "collective")
        .sort("start_ns")
    )
    shapes = _Shapes(issues)
    tags = []
    for tag in placed.iter_rows(named=True):
        thread, start, end = tag["thread"], tag["start_ns"], tag["end_ns"]
        signatures = issue_signatures(
            tag["collective"] or "",
            tag["elements_in"],
            tag["dtype"],
            tag["group_size"],
            shapes.within(thread, start, end),
        )
        tags.append(Tag(thread, start, end, tag["row"], str(tag["group_name"]), signatures))
    if all(tells_dtype(signature) for tag in tags for signature in tag.signatures):
        return tags
    # One without a dtype (several in one call) would match nothing: compare without.
    return [
        tag._replace(signatures=[signature._replace(dtype="") for signature in tag.signatures])
        for tag in tags
    ]


def untagged_issues(issues: pl.DataFrame, tags: list[Tag]) -> list[tuple[str, int]]:
    """Collectives issued without a tag, as the name of their transfer and the time of issue.

    The recorder's own barriers between its windows are such.
    """
    found = []
    for (thread,), own in issues.group_by("thread"):
        starts = np.array([tag.start_ns for tag in tags if tag.thread == thread], dtype=np.int64)
        ends = np.array([tag.end_ns for tag in tags if tag.thread == thread], dtype=np.int64)
        # The first tag that ends after the issue began; an issue holds its tag, or is inside it.
        following = np.searchsorted(ends, own["start_ns"].to_numpy(), side="right")
        begins = np.append(starts, np.iinfo(np.int64).max)[following]
        tagged = begins < own["end_ns"].to_numpy()
        for name, start in own.filter(~tagged).select("name", "start_ns").iter_rows():
            transfer = transfer_of(name.removeprefix("c10d::"))
            if transfer is not None:
                found.append((transfer, start))
    return found


class _Shapes:
    """The dimensions that each thread's c10d operators were issued with, by time."""

    def __init__(self, issues: pl.DataFrame) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._rows: dict[int, list[tuple[int, str | None]]] = defaultdict(list)
        ordered = issues.sort("start_ns").select("thread", "start_ns", "end_ns", "dimensions")
        for thread, start, end, dimensions in ordered.iter_rows():
            self._starts[thread].append(start)
            self._rows[thread].append((end, dimensions))

    def within(self, thread: int, start_ns: int, end_ns: int) -> str | None:
        """Those of the first operator that the thread issued inside the interval."""
        number = bisect_left(self._starts[thread], start_ns)
        if number < len(self._rows[thread]):
            end, dimensions = self._rows[thread][number]
            if end <= end_ns:
                return dimensions
        return None
