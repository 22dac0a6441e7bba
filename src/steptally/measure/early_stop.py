"""Finds recorded operators that never ran: those at which recomputation stopped early.

torch's non-reentrant checkpoint ends a recomputation once everything that backward needs has been
saved, by an exception from the hook that saves it. The operator about to run then shows in the
recording, with the hook's `detach` inside and nothing that it would have done itself.
"""

from __future__ import annotations

import polars as pl

from steptally.measure.phases import RECOMPUTE

_OF_THE_HOOK = frozenset(("aten::detach", "detach"))


def stopped_early(placed: pl.DataFrame, events: pl.DataFrame) -> set[int]:
    """Those of `placed` (from `phases.add_phases`) that never ran, by `event`.

    `events` are numbered by `event`, and hold all operators and launches.
    """
    suspects = placed.filter(pl.col("phase") == RECOMPUTE, pl.col("sequence").is_not_null())
    found: set[int] = set()
    for (thread,), own in suspects.group_by("thread"):
        work = events.filter(
            pl.col("thread") == thread, pl.col("kind").is_in(("operator", "launch"))
        ).sort("start_ns")
        names, numbers = work["name"], work["event"].to_numpy()
        first = work["start_ns"].search_sorted(own["start_ns"], side="left")
        behind = work["start_ns"].search_sorted(own["end_ns"], side="left")
        for event, start, end in zip(own["event"], first, behind, strict=True):
            inside = {
                name
                for name, number in zip(names[start:end], numbers[start:end], strict=True)
                if number != event
            }
            if inside and inside <= _OF_THE_HOOK:
                found.add(event)
    return found
