"""A per-rank table of phases of any tool: CSV, or JSON lines.

This is the way in for recordings that Megatron did not write (a plain PyTorch loop with DTensor, an
own timer): one row per rank and section. Columns, by the first name that is there:

    rank                            required
    section | phase | name          required
    ms, or s, us, ns                the time; or start_ns and end_ns (start_us …)
    iteration | step, host, kind    optional; kind is one of phase_table.KINDS
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from steptally import strict_json
from steptally.errors import InputError
from steptally.measure.stragglers.phase_table import KINDS, PhaseRows, PhaseTable

SECTION_NAMES = ("section", "phase", "name")
ITERATION_NAMES = ("iteration", "step")
LARGEST = 1 << 53  # beyond, a float holds no whole number exactly
TO_MS = {"ms": 1.0, "s": 1e3, "us": 1e-3, "ns": 1e-6}


def is_phase_table(text: str) -> bool:
    """Whether a file's beginning is such a table: a header, or a first object, with its columns."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first.lstrip().startswith("{"):
        try:
            names = set(strict_json.decode(first))
        except (ValueError, TypeError):
            return False
    else:
        names = {name.strip().lower() for name in first.split(",")}
    return _is_header(names)


def read_phase_table(text: str, source: str | Path) -> PhaseTable:
    """Read such a table. Raises `InputError` where columns are missing or no row can be used.

    Records whose start and end are both 0 were not collected (CUPTI says so of its timestamps;
    NVIDIA/nvidia-resiliency-ext#115): they are dropped and counted, not read as 0 ms.
    """
    rows, kinds, hosts = PhaseRows(), dict[str, str](), dict[int, str]()
    empty, damaged = 0, 0
    for record in _records(text, source):
        values = _values(record)
        if values is None:
            damaged += 1
            continue
        section, rank, ms, iteration = values
        if ms is None:
            empty += 1
            continue
        rows.add(iteration, section, rank, ms)
        if record.get("host"):
            hosts[rank] = str(record["host"])
        if record.get("kind"):
            kinds[section] = _kind(str(record["kind"]), source)
    if not len(rows):
        raise InputError(
            f"{source} is a table of phases, but none of its {empty + damaged} rows has a rank, a "
            "section and a time: give rows such as `rank,section,ms` / `0,forward,12.5`."
        )
    return PhaseTable(
        source=str(source), times=rows.frame(), kinds=kinds, hosts=hosts, lost=_lost(empty, damaged)
    )


def _lost(empty: int, damaged: int) -> tuple[str, ...]:
    lost = []
    if empty:
        lost.append(f"{empty} records with start and end of 0 were not collected, and are dropped")
    if damaged:
        lost.append(f"{damaged} rows lack a rank, a section or a time, and are dropped")
    return tuple(lost)


def _records(text: str, source: str | Path) -> Iterator[Mapping[str, Any]]:
    lines = text.lstrip("\ufeff")
    if lines.lstrip().startswith("{"):
        yield from _json_records(lines)
        return
    reader = csv.DictReader(io.StringIO(lines), skipinitialspace=True)
    names = {(name or "").strip().lower() for name in reader.fieldnames or ()}
    if not _is_header(names):
        raise InputError(
            f"{source} has the columns {', '.join(sorted(names)) or 'none'}: a table of phases has "
            "`rank`, `section` and `ms` (or start_ns and end_ns)."
        )
    try:
        for row in reader:
            yield {str(name).strip().lower(): value for name, value in row.items() if name}
    except csv.Error as error:
        raise InputError(f"{source} cannot be read as CSV: {error}.") from error


def _json_records(text: str) -> Iterator[Mapping[str, Any]]:
    """One object a line; a line that holds none comes as an empty record, and is counted."""
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            value = strict_json.decode(line)
        except ValueError:
            value = {}
        yield value if isinstance(value, dict) else {}


def _is_header(names: set[str]) -> bool:
    timed = bool(names & set(TO_MS)) or any(
        {f"start_{unit}", f"end_{unit}"} <= names for unit in TO_MS
    )
    return "rank" in names and bool(names & set(SECTION_NAMES)) and timed


def _values(record: Mapping[str, Any]) -> tuple[str, int, float | None, int | None] | None:
    """Section, rank, ms, iteration of a record; ms is None where nothing was collected."""
    section = next((record[name] for name in SECTION_NAMES if record.get(name)), None)
    rank = _number(record.get("rank"))
    times = _time(record)
    if not section or rank is None or times is None or not _whole(rank):
        return None
    iteration = next((_number(record[name]) for name in ITERATION_NAMES if name in record), None)
    ms = None if math.isnan(times) else times
    counted = int(iteration) if iteration is not None and _whole(iteration) else None
    return str(section).strip(), int(rank), ms, counted


def _time(record: Mapping[str, Any]) -> float | None:
    """A record's milliseconds; NaN where start and end are 0, None where no time is usable."""
    for unit, factor in TO_MS.items():
        start, end = _number(record.get(f"start_{unit}")), _number(record.get(f"end_{unit}"))
        if start is not None and end is not None:
            if start == 0 and end == 0:
                return math.nan
            return _usable((end - start) * factor)
        value = _number(record.get(unit))
        if value is not None:
            return _usable(value * factor)
    return None


def _usable(ms: float) -> float | None:
    return ms if 0 <= ms < LARGEST else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(number: float) -> bool:
    return number == int(number) and 0 <= number < LARGEST


def _kind(text: str, source: str | Path) -> str:
    kind = text.strip().lower()
    if kind not in KINDS:
        raise InputError(
            f"{source} states the kind {text!r} of a section: a kind is one of {', '.join(KINDS)}."
        )
    return kind
