"""Draws the traces of a request for Perfetto: one after the other, so that one is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from steptally.errors import InputError
from steptally.measure.group_axes import name_groups
from steptally.measure.trace_account import TraceOptions
from steptally.trace.perfetto import Track, device_tracks, write_perfetto
from steptally.trace.read import TraceSource
from steptally.trace.schema import Trace


def draw(
    path: Path, sources: Sequence[TraceSource], ranks: Mapping[str, int], options: TraceOptions
) -> None:
    """Write the sources that were measured, as the ranks that they were measured as (by label).

    Raises `WriteError` where the file cannot be written.
    """
    write_perfetto(path, _drawn(sources, ranks, options))


def _drawn(
    sources: Sequence[TraceSource], ranks: Mapping[str, int], options: TraceOptions
) -> Iterator[tuple[Trace, list[Track]]]:
    for source in sources:
        if source.label not in ranks:
            continue
        try:
            trace = source.read(options.rules)
        except InputError:  # gone since it was measured
            continue
        trace, _ = name_groups(trace, options.job)
        yield replace(trace, rank=ranks[source.label]), device_tracks(trace)
