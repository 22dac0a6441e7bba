"""Which ranks are meant, said in as few coordinates as tell them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from steptally.measure.stragglers.program import Worker

AXES = ("pp", "dp", "ep", "cp", "tp")
# Ranks that differ on these alone wait for each other inside a pass, and are slow together.
_INSIDE_A_PASS = (("ep", "cp", "tp"), ("cp", "tp"), ("ep",), ("cp",), ("tp",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A set of ranks: their common coordinates, and host and device where those are common."""

    ranks: tuple[int, ...]
    coordinates: Mapping[str, int]
    host: str | None = None
    device: str | None = None


def place_of(ranks: Collection[int], workers: Mapping[int, Worker]) -> Place:
    """The ranks with what they have in common, on the axes that have more than one place.

    One rank of several that have no known place is told by its number, as the axis `rank`.

    >>> workers = {r: Worker(rank=r, coordinates={"pp": r // 2, "dp": r % 2}) for r in range(4)}
    >>> place_of([2, 3], workers).coordinates, place_of([2], workers).coordinates
    ({'pp': 1}, {'pp': 1, 'dp': 0})
    """
    chosen = [workers[rank] for rank in sorted(ranks)]
    common = {
        axis: chosen[0].coordinates[axis]
        for axis in split_axes(workers)
        if axis in chosen[0].coordinates
        and len({worker.coordinates.get(axis) for worker in chosen}) == 1
    }
    if not common and len(chosen) == 1 < len(workers):
        common = {"rank": chosen[0].rank}
    hosts = {worker.host for worker in chosen}
    devices = {worker.device for worker in chosen}
    return Place(
        ranks=tuple(worker.rank for worker in chosen),
        coordinates=common,
        host=hosts.pop() if len(hosts) == 1 else None,
        device=devices.pop() if len(devices) == 1 else None,
    )


def split_axes(workers: Mapping[int, Worker]) -> list[str]:
    """The axes on which the workers have different places."""
    return [
        axis
        for axis in AXES
        if len({worker.coordinates.get(axis) for worker in workers.values()}) > 1
    ]


def together(ranks: Collection[int], workers: Mapping[int, Worker]) -> list[Place]:
    """The ranks in places: whole hosts, then all ranks of one place on one axis, then groups that
    share a pass (tensor parallel, …), then each alone.

    Stages are left out: ranks of a stage are one another's peers.

    >>> workers = {
    ...     r: Worker(rank=r, coordinates={"dp": r // 4, "pp": r // 2 % 2, "tp": r % 2})
    ...     for r in range(8)
    ... }
    >>> [(place.ranks, place.coordinates) for place in together([4, 5], workers)]
    [((4, 5), {'pp': 0, 'dp': 1})]
    """
    left, places = set(ranks), []
    for group in _candidates(workers):
        if len(group) > 1 and group <= left:
            places.append(place_of(group, workers))
            left -= group
    return [*places, *(place_of([rank], workers) for rank in sorted(left))]


def _candidates(workers: Mapping[int, Worker]) -> list[set[int]]:
    """Every host's ranks where there are several hosts, those of each place on an axis, then those
    that differ only on axes inside a pass."""
    hosts: dict[str, set[int]] = {}
    for worker in workers.values():
        if worker.host is not None:
            hosts.setdefault(worker.host, set()).add(worker.rank)
    groups = list(hosts.values()) if len(hosts) > 1 else []
    for axis in split_axes(workers):
        if axis == "pp":
            continue
        places: dict[int, set[int]] = {}
        for worker in workers.values():
            if axis in worker.coordinates:
                places.setdefault(worker.coordinates[axis], set()).add(worker.rank)
        groups += places.values()
    for inside in _INSIDE_A_PASS:
        groups += _alike_but_on(inside, workers)
    return [ranks for ranks in groups if len(ranks) < len(workers)]


def _alike_but_on(axes: Collection[str], workers: Mapping[int, Worker]) -> list[set[int]]:
    """The ranks in groups that have all coordinates but these in common; none where none are
    known."""
    groups: dict[tuple[tuple[str, int], ...], set[int]] = {}
    for worker in workers.values():
        if set(axes) <= worker.coordinates.keys():
            other = {axis: at for axis, at in worker.coordinates.items() if axis not in axes}
            groups.setdefault(tuple(sorted(other.items())), set()).add(worker.rank)
    return list(groups.values())
