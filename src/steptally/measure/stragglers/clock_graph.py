"""Offsets from differences: ranks and groups as a graph, solved by weighted least squares.

Each edge says how far a rank's ends lie behind its group's typical ones. Two ranks need no
collective in common: a path of groups is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_ACCURATE = 1e-13


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """One entry for each rank in each group: the places of both, from 0."""

    rank: Int64s
    group: Int64s
    ranks: int
    groups: int


def components(edges: Edges) -> Int64s:
    """The component of each rank, called by its lowest rank's place; alone where it has no edge."""
    own = np.arange(edges.ranks)
    while True:
        lowest = np.full(edges.groups, edges.ranks)
        np.minimum.at(lowest, edges.group, own[edges.rank])
        following = own.copy()
        np.minimum.at(following, edges.rank, lowest[edges.group])
        following = following[following]
        if (following == own).all():
            return own
        own = following


def solve(edges: Edges, difference: Float64s, weight: Float64s) -> Float64s:
    """The x of each rank that makes x[rank] + difference equal over each group, best by weight.

    Only differences within a component are told: the mean of its ranks is 0. Conjugate gradients
    on the ranks' Laplacian (the groups eliminated), scaled by its diagonal.
    """
    at_rank = np.bincount(edges.rank, weight, edges.ranks)
    at_group = np.maximum(np.bincount(edges.group, weight, edges.groups), np.finfo(float).tiny)

    def applied(x: Float64s) -> Float64s:
        mean = np.bincount(edges.group, weight * x[edges.rank], edges.groups) / at_group
        own = np.bincount(edges.rank, weight * mean[edges.group], edges.ranks)
        return np.asarray(at_rank * x - own)

    typical = np.bincount(edges.group, weight * difference, edges.groups) / at_group
    wanted = np.bincount(edges.rank, weight * (typical[edges.group] - difference), edges.ranks)
    scale = np.where(at_rank > 0, 1 / np.maximum(at_rank, np.finfo(float).tiny), 0.0)
    x = np.zeros(edges.ranks)
    residual = wanted.astype(np.float64)
    direction = scaled = scale * residual
    size = first = float(residual @ scaled)
    for _ in range(4 * (edges.ranks + edges.groups)):
        if size <= first * _ACCURATE**2 or size <= 0:
            break
        moved = applied(direction)
        step = size / float(direction @ moved)
        x, residual = x + step * direction, residual - step * moved
        scaled = scale * residual
        size, before = float(residual @ scaled), size
        direction = scaled + size / before * direction
    return x - component_means(components(edges), x)


def component_means(own: Int64s, x: Float64s) -> Float64s:
    """For each rank the mean of x over its component."""
    sums = np.bincount(own, x, own.size)
    return np.asarray((sums / np.maximum(np.bincount(own, minlength=own.size), 1))[own])
