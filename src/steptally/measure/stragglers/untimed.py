"""Records that a profiler kept without their time: CUPTI writes 0 for start and end of these."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from steptally.measure.overlap import DEVICE_WORK
from steptally.trace.schema import Trace

_WORK = (*DEVICE_WORK, "transfer")
# A 0 lies years before a recording; a kernel of no length may lie a moment before the others.
_LEAST_APART_NS = 10**9


def without_untimed(trace: Trace) -> tuple[Trace, int]:
    """The trace without such records, and how many there were.

    Readers add the base of a file's clock, so that a 0 may stand anywhere before the recording:
    a record without length, earlier than all that has one by a second and by more than all of that
    lasts. The events keep their rows, which other tables point at; what is dropped becomes
    `instrument`.
    """
    events = trace.events
    works = events["kind"].is_in(_WORK)
    timed = events.filter(works & (events["end_ns"] > events["start_ns"]))
    if timed.is_empty():
        return trace, 0
    first, last = timed.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    early = events["start_ns"] < first - max(last - first, _LEAST_APART_NS)
    untimed = works & (events["end_ns"] == events["start_ns"]) & (early | (events["start_ns"] <= 0))
    if not untimed.any():
        return trace, 0
    kind = pl.when(untimed).then(pl.lit("instrument", events["kind"].dtype)).otherwise("kind")
    return replace(trace, events=events.with_columns(kind=kind)), int(untimed.sum())
