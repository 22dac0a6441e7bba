"""The numbers that the formulas work on."""

from __future__ import annotations

from typing import Any, TypeAlias

# An exact int, or a float64 array with one entry a layout: the formulas are plain arithmetic and
# take both. A 405B step of 16.8 M tokens is 4.1e19 FLOPs: over 2^63, so never an int64 array.
Count: TypeAlias = Any
