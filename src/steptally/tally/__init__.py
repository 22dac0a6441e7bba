"""THE RESULT: figures with basis, unit and convention, and accounts of typed rows."""

from steptally.tally.figure import PEAK_ALLOCATED, Figure
from steptally.tally.rows import (
    ConventionRow,
    FlopsRow,
    GemmRow,
    GroupRow,
    GroupTime,
    LoggedRow,
    LossRow,
    MemoryChangeRow,
    MemoryMomentRow,
    MemoryPeakRow,
    MemoryRow,
    ParametersRow,
    Row,
    StepRow,
    TimeRow,
    TrafficRow,
)
from steptally.tally.tally import SCHEMA, Tally, tally_from_json

__all__ = [
    "PEAK_ALLOCATED",
    "SCHEMA",
    "ConventionRow",
    "Figure",
    "FlopsRow",
    "GemmRow",
    "GroupRow",
    "GroupTime",
    "LoggedRow",
    "LossRow",
    "MemoryChangeRow",
    "MemoryMomentRow",
    "MemoryPeakRow",
    "MemoryRow",
    "ParametersRow",
    "Row",
    "StepRow",
    "Tally",
    "TimeRow",
    "TrafficRow",
    "tally_from_json",
]
