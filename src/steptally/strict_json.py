"""JSON that was written by somebody: decoded strictly, and failing in one way only."""

from __future__ import annotations

import json
import math
from typing import Any


def decode(text: str) -> Any:
    """The value that a JSON text holds; integers of any size stay exact.

    Raises `ValueError` for anything that is not JSON: Python's own decoder takes NaN and numbers
    beyond every float, which no JSON can give back, and raises `RecursionError` for deep nesting.

    >>> decode('{"flops": 12345678901234567890123}')
    {'flops': 12345678901234567890123}
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def _refuse(name: str) -> float:
    raise ValueError(f"it holds {name}, which JSON has not")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text[:40])
