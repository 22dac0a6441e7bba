"""Where a job's ranks stand, for recordings that do not tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptally.job import Job
    from steptally.measure.stragglers.places import RankPosition


def job_places(job: Job) -> dict[int, RankPosition]:
    """The coordinates of every rank of the job, as Megatron numbers them; ep with experts only.

    Hosts and devices are not told: which rank runs where is the launcher's to say.
    """
    from steptally.measure.stragglers.places import RankPosition
    from steptally.predict.ranks import coordinates

    axes = ("tp", "cp", "dp", "pp", *(("ep",) if job.architecture.num_experts else ()))
    places = {}
    for rank in range(job.layout.world_size):
        at = coordinates(job.layout, rank)
        places[rank] = RankPosition(coordinates={axis: getattr(at, axis) for axis in axes})
    return places
