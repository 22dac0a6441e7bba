"""Megatron's timers of all ranks, as `--timing-log-option` prints them below iteration lines.

Form, from megatron/core/timers.py (Megatron-Core 0.16.1): `all` prints `times across ranks (ms):`,
then `  <section>:` and one line `     rank  3: 12.34` per rank that ran it; `minmax` prints
`(min, max) time across ranks (ms):`, then `    <section> ......: (12.34, 15.67)`; `max` likewise
with one number. Times are per iteration (the mean of a log interval). FlagScale's straggler report
(`Section Timings (ms):`, `Rank 0: 9.98ms`; flagos-ai/FlagScale#938) has the form of `all`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from steptally.measure.log import parse_line
from steptally.measure.stragglers.phase_table import PhaseRows, PhaseTable, SectionRange

HEADER = re.compile(
    r"(?P<all>times across ranks \(ms\):|Section Timings \(ms\):)"
    r"|(?P<range>\(min, max\) time across ranks \(ms\):"
    r"|max time across ranks \(ms\):)"
)
# A launcher's prefix (`[default7]:`, `7:`) holds no space; sections are indented behind it.
SECTION = re.compile(r"^\S*?\s{2,}(?P<name>[A-Za-z][\w/.-]*):\s*$")
RANK = re.compile(
    r"^\S*?\s+rank\s+(?P<rank>\d{1,9})\s*:\s*(?P<ms>\S*?)\s*(?:ms)?\s*$", re.IGNORECASE
)
RANGE = re.compile(r"^\S*?\s+(?P<name>[A-Za-z][\w/.-]*) \.*: (?P<rest>\(?[^()]+\)?)\s*$")
REPORT_STEP = re.compile(r"Straggler Report at Step (\d{1,18})\b")


def read_timer_log(lines: Iterable[str], source: str | Path) -> PhaseTable:
    """Every timer block of a log; a table without rows where there is none.

    A block belongs to the iteration line before it, which the same rank printed. Numbers that
    cannot be read are counted in `lost`; other lines between a block's are passed over.

    >>> text = ["times across ranks (ms):", "  forward-compute:", "     rank  0: 12.5"]
    >>> read_timer_log(text, "log").times.rows()
    [(None, 'forward-compute', 0, 12.5)]
    """
    reader = _Reader()
    for line in lines:
        reader.take(line.rstrip("\n"))
    durations = reader.durations_ms
    lost = reader.damaged
    return PhaseTable(
        source=str(source),
        times=reader.rows.frame(),
        ranges=tuple(reader.ranges),
        step_ms=statistics.median(durations) if durations else None,
        lost=(f"{lost} timer lines hold no time that can be read",) if lost else (),
    )


class _Reader:
    """Where in the log the reader is: in which iteration, block and section."""

    def __init__(self) -> None:
        self.rows = PhaseRows()
        self.ranges: list[SectionRange] = []
        self.durations_ms: list[float] = []
        self.damaged = 0
        self._iteration: int | None = None
        self._block = ""
        self._section: str | None = None

    def take(self, line: str) -> None:
        header = HEADER.search(line)
        if header:
            self._block = "all" if header["all"] else "range"
            self._section = None
        elif "teration" in line and (iteration := parse_line(line)) is not None:
            self._iteration, self._block = iteration.iteration, ""
            self.durations_ms.append(iteration.duration_ms)
        elif report := REPORT_STEP.search(line):
            self._iteration, self._block = int(report[1]), ""
        elif self._block == "all":
            self._take_all(line)
        elif self._block == "range":
            self._take_range(line)

    def _take_all(self, line: str) -> None:
        if found := RANK.match(line):
            ms = _number(found["ms"])
            if ms is None or self._section is None:
                self.damaged += 1
            else:
                self.rows.add(self._iteration, self._section, int(found["rank"]), ms)
        elif found := SECTION.match(line):
            self._section = found["name"]

    def _take_range(self, line: str) -> None:
        found = RANGE.match(line)
        if found is None:
            return
        numbers = [_number(part) for part in found["rest"].strip("()").split(",")]
        known = [number for number in numbers if number is not None]
        if len(known) != len(numbers) or len(known) not in (1, 2):
            self.damaged += 1
            return
        lowest = known[0] if len(known) == 2 else None
        self.ranges.append(
            SectionRange(
                iteration=self._iteration, section=found["name"], min_ms=lowest, max_ms=known[-1]
            )
        )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
