"""THE RESULT: figures with basis, unit and convention, and accounts of typed rows."""

from steptally.tally.compare import COMPARISON_SCHEMA, Comparison, compare_tallies
from steptally.tally.compare_account import Section
from steptally.tally.figure import PEAK_ALLOCATED, Figure
from steptally.tally.line import Line
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
    ProgramRow,
    Row,
    StepRow,
    SubstitutionRow,
    TimeRow,
    TrafficRow,
)
from steptally.tally.tally import SCHEMA, Tally, tally_from_json

__all__ = [
    "COMPARISON_SCHEMA",
    "PEAK_ALLOCATED",
    "SCHEMA",
    "Comparison",
    "ConventionRow",
    "Figure",
    "FlopsRow",
    "GemmRow",
    "GroupRow",
    "GroupTime",
    "Line",
    "LoggedRow",
    "LossRow",
    "MemoryChangeRow",
    "MemoryMomentRow",
    "MemoryPeakRow",
    "MemoryRow",
    "ParametersRow",
    "ProgramRow",
    "Row",
    "Section",
    "StepRow",
    "SubstitutionRow",
    "Tally",
    "TimeRow",
    "TrafficRow",
    "compare_tallies",
    "tally_from_json",
]
