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
    LoggedRow,
    LossRow,
    MemoryChangeRow,
    MemoryMomentRow,
    MemoryPeakRow,
    MemoryRow,
    ParametersRow,
    Row,
    StepRow,
    TrafficRow,
)
from steptally.tally.tally import SCHEMA, Tally, tally_from_json
from steptally.tally.trace_rows import (
    ContentionRow,
    FamilyRow,
    FusionRow,
    GapRow,
    GroupPair,
    GroupTime,
    KernelRow,
    NetGainRow,
    SourceRow,
    TimeRow,
    TrustRow,
)

__all__ = [
    "COMPARISON_SCHEMA",
    "PEAK_ALLOCATED",
    "SCHEMA",
    "Comparison",
    "ContentionRow",
    "ConventionRow",
    "FamilyRow",
    "Figure",
    "FlopsRow",
    "FusionRow",
    "GapRow",
    "GemmRow",
    "GroupPair",
    "GroupRow",
    "GroupTime",
    "KernelRow",
    "Line",
    "LoggedRow",
    "LossRow",
    "MemoryChangeRow",
    "MemoryMomentRow",
    "MemoryPeakRow",
    "MemoryRow",
    "NetGainRow",
    "ParametersRow",
    "Row",
    "Section",
    "SourceRow",
    "StepRow",
    "Tally",
    "TimeRow",
    "TrafficRow",
    "TrustRow",
    "compare_tallies",
    "tally_from_json",
]
