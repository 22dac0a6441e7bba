"""Where each rank stands: its coordinates, host and device, as far as something tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steptally.measure.group_axes import AXES
from steptally.measure.stragglers.recording import RankRecording
from steptally.trace.read import TraceSource
from steptally.trace.run_directory import RunDirectory
from steptally.trace.schema import Trace

PLACE_AXES = ("tp", "cp", "dp", "pp", "ep")
# Groups that join all ranks of one axis, and no others: a rank's place among them is its
# coordinate. Partial and hierarchical groups join some, so their places say less.
_WHOLE_AXES = (
    "TENSOR_MODEL_PARALLEL_GROUP",
    "CONTEXT_PARALLEL_GROUP",
    "DATA_PARALLEL_GROUP",
    "PIPELINE_MODEL_PARALLEL_GROUP",
    "EXPERT_MODEL_PARALLEL_GROUP",
    "mesh_tp",
    "mesh_cp",
    "mesh_ep",
    "mesh_pp",
    "mesh_dp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """A rank's coordinates on the parallel axes, its host and its device."""

    coordinates: Mapping[str, int] = field(default_factory=dict)
    host: str | None = None
    device: str | None = None


def group_coordinates(trace: Trace, rank: int) -> dict[str, int]:
    """The coordinates that the trace's own list of groups tells; an axis told twice differently
    is left out.
    """
    told: dict[str, set[int]] = {}
    for group in trace.groups:
        if group.description in _WHOLE_AXES and rank in group.ranks:
            place = sorted(group.ranks).index(rank)
            told.setdefault(AXES[group.description], set()).add(place)
    return {axis: places.pop() for axis, places in told.items() if len(places) == 1}


def manifest_places(directory: RunDirectory) -> dict[int, RankPosition]:
    """What a run directory's manifest says of each rank; nothing where it lists none.

    Raises `InputError` where the manifest cannot be read.
    """
    rows = directory.read_manifest().get("ranks") or []
    return {row["rank"]: _place(row) for row in rows}


def places_beside(sources: Iterable[TraceSource]) -> dict[int, RankPosition]:
    """Those of the one run directory that the sources lie in; of none where they are of several."""
    above = {source.path.parent.parent for source in sources}
    directory = above.pop() if len(above) == 1 else Path()
    if not above and RunDirectory(directory).manifest.is_file():
        return manifest_places(RunDirectory(directory))
    return {}


def placed(
    recordings: Sequence[RankRecording], places: Mapping[int, RankPosition]
) -> list[RankRecording]:
    """The recordings with their places; what `places` says goes before what was told already."""
    return [
        replace(
            recording,
            coordinates={**recording.coordinates, **place.coordinates},
            host=place.host or recording.host,
            device=place.device or recording.device,
        )
        for recording in recordings
        for place in (places.get(recording.rank, RankPosition()),)
    ]


def _place(row: Mapping[str, Any]) -> RankPosition:
    coordinates = {axis: row[axis] for axis in PLACE_AXES if isinstance(row.get(axis), int)}
    return RankPosition(coordinates=coordinates, host=row.get("host"), device=row.get("device"))
