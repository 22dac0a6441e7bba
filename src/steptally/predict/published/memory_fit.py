"""How well the memory account does: by rank, by source, and with each model left out of its fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, TypeGuard

from steptally.predict.published.agreement import Agreement, agreement
from steptally.predict.published.flops_check import Comparison
from steptally.predict.published.memory_check import MemoryComparison
from steptally.predict.published.memory_sources import MemorySource, memory_sources


def compared_memory(comparisons: Iterable[Comparison]) -> list[MemoryComparison]:
    """The rows that have both figures."""
    return [one for one in comparisons if _is_compared(one)]


def by_source(comparisons: Sequence[MemoryComparison]) -> dict[str, Agreement]:
    """Agreement of the compared rows of each source."""
    names = dict.fromkeys(one.source.name for one in comparisons)
    return {
        name: agreement([one.pair for one in comparisons if one.source.name == name])
        for name in names
    }


def leave_one_model_out(comparisons: Sequence[MemoryComparison]) -> list[tuple[float, float]]:
    """(predicted, measured) of each compared row, `outside` fitted without the rows of its model.

    Sources of one counter share the constant; those whose counter is torch's have none to fit.
    """
    pairs = []
    for one in comparisons:
        others = [
            other
            for other in comparisons
            if other.model != one.model and other.source.matches == one.source.matches
        ]
        refitted = fitted_outside(others) if one.source.outside and others else one.source.outside
        predicted, measured = one.pair
        pairs.append((predicted - one.source.outside + refitted, measured))
    return pairs


def fitted_outside(comparisons: Sequence[MemoryComparison]) -> float:
    """The constant of a counter: the median of what tensors do not explain, in its unit."""
    return median(one.pair[1] - one.pair[0] + one.source.outside for one in comparisons)


def rank_pairs(comparisons: Sequence[MemoryComparison]) -> list[tuple[float, float]]:
    """(predicted, measured) of every rank of the rows that state them."""
    return [pair for one in comparisons for pair in one.by_rank]


def fit_as_json(comparisons: Sequence[MemoryComparison]) -> dict[str, Any]:
    """`constants` (fitted, with their sources) and `agreements` by name."""
    agreements = {
        **by_source(comparisons),
        "every rank": agreement(rank_pairs(comparisons)),
        "leave one model out": agreement(leave_one_model_out(comparisons)),
    }
    for name in dict.fromkeys(one.source.name for one in comparisons if one.source.outside):
        held_out = [
            pair
            for one, pair in zip(comparisons, leave_one_model_out(comparisons), strict=True)
            if one.source.name == name
        ]
        agreements[f"{name}, leave one model out"] = agreement(held_out)
    return {
        "constants": [_constant(source) for source in memory_sources() if source.outside],
        "agreements": {name: asdict(found) for name, found in agreements.items()},
    }


def _constant(source: MemorySource) -> dict[str, Any]:
    return {
        "name": f"beside tensors, {source.name}",
        "value": source.outside,
        "unit": "GiB",
        "source": "median of (measured − predicted) of its rows in published.yaml",
    }


def _is_compared(one: Comparison) -> TypeGuard[MemoryComparison]:
    return isinstance(one, MemoryComparison) and one.error is not None
