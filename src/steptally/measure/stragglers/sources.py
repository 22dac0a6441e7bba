"""One file beside traces: a log (iterations, timers, other detectors), or a table of phases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from steptally.errors import InputError
from steptally.measure.log import read_log
from steptally.measure.stragglers.conclusions import Conclusions, join_conclusions
from steptally.measure.stragglers.detector_scores import conclude_from_scores, read_scores
from steptally.measure.stragglers.phase_file import is_phase_table, read_phase_table
from steptally.measure.stragglers.series import Schedule, conclude_from_series, series_of_log
from steptally.measure.stragglers.straggler_line import (
    conclude_from_straggler_lines,
    read_straggler_lines,
)
from steptally.measure.stragglers.timer_log import read_timer_log
from steptally.measure.stragglers.timers import Coordinates, conclude_from_phases

HEAD_CHARACTERS = 64 << 10
LONGEST_LINE = 64 << 10
# Megatron's dump of its arguments: `  save_interval ......... 500`.
INTERVAL = re.compile(r"\b(?P<name>save|eval|manual_gc)_interval\s\.{3,}\s(?P<value>\d{1,9})\b")


def conclude_from_file(path: Path, coordinates: Coordinates | None = None) -> Conclusions:
    """Verdicts of one file, recognised by its content.

    Raises `InputError` for a file that cannot be read, or that holds none of these. `coordinates`
    are the ranks' places on the parallel axes, where they are known.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            head = file.read(HEAD_CHARACTERS)
            file.seek(0)
            if is_phase_table(head):
                table = read_phase_table(file.read(), path)
                return conclude_from_phases(table, coordinates)
            return _conclude_from_log(_lines(file), path, coordinates)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _conclude_from_log(
    lines: Iterable[str], path: Path, coordinates: Coordinates | None
) -> Conclusions:
    scores: list[str] = []
    reports: list[str] = []
    intervals: dict[str, int] = {}
    table = read_timer_log(_setting_apart(lines, scores, reports, intervals), path)
    parts = []
    if table.step_ms is not None:
        series = series_of_log(read_log(path), str(path))
        parts.append(conclude_from_series(series, Schedule(**intervals)))
    if not table.times.is_empty() or table.ranges:
        parts.append(conclude_from_phases(table, coordinates))
    if reports:
        parts.append(conclude_from_straggler_lines(read_straggler_lines(reports)))
    if scores:
        parts.append(conclude_from_scores(read_scores(scores)))
    if not parts:
        raise InputError(
            f"{path} holds no iteration lines, no timers of ranks (`times across ranks (ms):`), "
            "no line of a straggler detector and no table of phases: record with "
            "`--timing-log-option all --timing-log-level 2`, or give a table with rank, "
            "section and ms."
        )
    return join_conclusions(parts)


def _setting_apart(
    lines: Iterable[str], scores: list[str], reports: list[str], intervals: dict[str, int]
) -> Iterator[str]:
    """The lines as they are, with other detectors' and the schedule kept apart."""
    for line in lines:
        if "Rtt/Rnk:" in line:
            reports.append(line)
        elif "Score=" in line or " performance" in line:
            scores.append(line)
        elif "_interval" in line and (found := INTERVAL.search(line)):
            intervals[f"{found['name']}_interval"] = int(found["value"])
        yield line


def _lines(file: Iterable[str]) -> Iterator[str]:
    """Lines, cut beyond all measure: what is looked for stands at their beginning."""
    return (line[:LONGEST_LINE] for line in file)
