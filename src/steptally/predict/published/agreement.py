"""How well predictions and measurements agree over many rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Counts of rows within a relative error, and means over the compared rows.

    `mape` is the mean of |error|, `bias` the mean of error, `order` the share of pairs of rows that
    stand in the same order in both, among pairs that differ in both. None where nothing compares.
    """

    compared: int
    within_0_3pct: int
    within_1pct: int
    mape: float | None
    bias: float | None
    order: float | None


def agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Agreement of (predicted, measured) pairs.

    >>> agreement([(1.0, 1.0), (2.02, 2.0)]).within_1pct
    2
    """
    errors = [predicted / measured - 1 for predicted, measured in pairs]
    sizes = [abs(error) for error in errors]
    return Agreement(
        compared=len(pairs),
        within_0_3pct=sum(size <= 0.003 for size in sizes),
        within_1pct=sum(size <= 0.01 + 1e-12 for size in sizes),
        mape=sum(sizes) / len(sizes) if sizes else None,
        bias=sum(errors) / len(errors) if errors else None,
        order=order_agreement(pairs),
    )


def order_agreement(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Share of pairs of rows in the same order by prediction and by measurement.

    >>> order_agreement([(1.0, 10.0), (2.0, 20.0), (3.0, 15.0)])
    0.6666666666666666
    """
    same = different = 0
    for index, (predicted, measured) in enumerate(pairs):
        for other_predicted, other_measured in pairs[:index]:
            product = (predicted - other_predicted) * (measured - other_measured)
            same += product > 0
            different += product < 0
    return same / (same + different) if same + different else None
