"""Offsets from differences: clocks and groups as a graph, solved by weighted least squares.

Each edge says how far a clock's ends lie behind its group's typical ones. Two clocks need no
collective in common: a path of groups is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_ACCURATE = 1e-13
# An edge that the others contradict by this many of its deviations counts half.
_HALF_AT = 3.0
_REWEIGHTED = 4
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """One entry for each clock in each group: the places of both, from 0."""

    clock: Int64s
    group: Int64s
    clocks: int
    groups: int


def components(edges: Edges) -> Int64s:
    """The component of each clock, called by its lowest place; its own where it has no edge."""
    own = np.arange(edges.clocks)
    while True:
        lowest = np.full(edges.groups, edges.clocks)
        np.minimum.at(lowest, edges.group, own[edges.clock])
        following = own.copy()
        np.minimum.at(following, edges.clock, lowest[edges.group])
        following = following[following]
        if (following == own).all():
            return own
        own = following


def solve_robustly(
    edges: Edges, difference: Float64s, weight: Float64s, deviation: Float64s
) -> Float64s:
    """`solve`, with edges that contradict the others weighted down (Cauchy's weights)."""
    x = solve(edges, difference, weight)
    for _ in range(_REWEIGHTED):
        value = x[edges.clock] + difference
        at_group = np.maximum(np.bincount(edges.group, weight, edges.groups), _TINY)
        typical = np.bincount(edges.group, weight * value, edges.groups) / at_group
        off = (value - typical[edges.group]) / (_HALF_AT * deviation)
        x = solve(edges, difference, weight / (1 + off**2))
    return x


def solve(edges: Edges, difference: Float64s, weight: Float64s) -> Float64s:
    """The x of each clock that makes x[clock] + difference equal over each group, best by weight.

    Only differences within a component are told: the mean of its clocks is 0. Conjugate gradients
    on the clocks' Laplacian (the groups eliminated), scaled by its diagonal.
    """
    at_clock = np.bincount(edges.clock, weight, edges.clocks)
    at_group = np.maximum(np.bincount(edges.group, weight, edges.groups), _TINY)

    def pulled(value: Float64s) -> Float64s:
        """How far the groups pull each clock from these values of the edges."""
        typical = np.bincount(edges.group, weight * value, edges.groups) / at_group
        pull = np.bincount(edges.clock, weight * (value - typical[edges.group]), edges.clocks)
        return np.asarray(pull, dtype=np.float64)

    scale = np.where(at_clock > 0, 1 / np.maximum(at_clock, _TINY), 0.0)
    x, residual = np.zeros(edges.clocks), -pulled(difference)
    direction = scaled = scale * residual
    size = first = float(residual @ scaled)
    for _ in range(4 * (edges.clocks + edges.groups)):
        moved = pulled(direction[edges.clock])
        bent = float(direction @ moved)
        if size <= first * _ACCURATE**2 or bent <= 0:
            break
        x, residual = x + size / bent * direction, residual - size / bent * moved
        scaled = scale * residual
        size, before = float(residual @ scaled), size
        direction = scaled + size / before * direction
    return x - _component_means(components(edges), x)


def component_medians(own: Int64s, x: Float64s) -> Float64s:
    """For each clock the (lower) median of x over its component."""
    order = np.lexsort((x, own))
    names, starts, counts = np.unique(own[order], return_index=True, return_counts=True)
    medians = x[order][starts + (counts - 1) // 2]
    return np.asarray(medians[np.searchsorted(names, own)])


def _component_means(own: Int64s, x: Float64s) -> Float64s:
    sums = np.bincount(own, x, own.size)
    return np.asarray((sums / np.maximum(np.bincount(own, minlength=own.size), 1))[own])
