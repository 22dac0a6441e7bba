"""Logs of `nvidia-smi --query-gpu=… --format=csv[,nounits]`, old and new names of columns.

Names: `nvidia-smi --help-query-gpu`. A header is needed: with `noheader` a column is any number.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from steptally.errors import InputError
from steptally.measure.stragglers.side_files.readings import bus_id, mask, reading, whole
from steptally.measure.stragglers.side_files.rows import GpuRows
from steptally.measure.stragglers.side_files.throttle import COLUMNS

NUMBERS: Mapping[str, str] = {
    "clocks.sm": "sm_mhz",
    "clocks.current.sm": "sm_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "power.draw": "power_w",
    "power.draw.average": "power_w",
    "power.draw.instant": "power_w",
    "power.limit": "power_limit_w",
    "enforced.power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "utilization.gpu": "utilization_percent",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
}
PLACES: Mapping[str, str] = {
    "timestamp": "time",
    "host": "host",
    "hostname": "host",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
}
INDICES = ("index", "gpu_index", "gpu")
BUSES = ("pci.bus_id", "gpu_bus_id")
REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
MEASURES = (*NUMBERS, *(f"{prefix}.active" for prefix in REASONS))
MEASURES += tuple(f"{prefix}.{name}" for prefix in REASONS for name in COLUMNS)


def column_names(line: str) -> list[str]:
    """The columns of a header line without their units, in lower case.

    >>> column_names("index, clocks.current.sm [MHz], power.draw [W]")
    ['index', 'clocks.current.sm', 'power.draw']
    """
    return [cell.split("[")[0].strip().lower() for cell in line.lstrip("\ufeff").split(",")]


def is_nvidia_csv(line: str) -> bool:
    """Whether a line is a header of this kind: at least one measure that is known."""
    return not set(column_names(line)).isdisjoint(MEASURES)


def read_nvidia_csv(lines: Iterable[str], rows: GpuRows) -> None:
    """Add every row of a log. Rows of another length are counted in `rows.lost`; a header that is
    written again (a restarted log) starts anew.

    Raises `InputError` where no column tells which GPU a row is of.
    """
    names: list[str] = []
    for cells in csv.reader((line.replace("\0", "") for line in lines), skipinitialspace=True):
        if not any(cell.strip() for cell in cells):
            continue
        header = column_names(",".join(cells))
        if not set(header).isdisjoint(MEASURES):
            names = header
            _check_places(names)
        elif len(cells) != len(names):
            rows.lost += 1
        else:
            rows.add(_values(names, cells))


def _check_places(names: Sequence[str]) -> None:
    if set(names).isdisjoint({*INDICES, *BUSES, "uuid", "gpu_uuid"}):
        raise InputError(
            f"a log of nvidia-smi has the columns {', '.join(names)}, none of which tells which "
            "GPU a row is of: add `index,uuid,pci.bus_id` to --query-gpu."
        )


def _values(names: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    reasons: int | None = None
    for name, cell in zip(names, cells, strict=True):
        text = cell.strip()
        if field := NUMBERS.get(name):
            values[field] = reading(text) if values.get(field) is None else values[field]
        elif field := PLACES.get(name):
            values[field] = text or None
        elif name in INDICES:
            values["index"] = whole(text)
        elif name in BUSES:
            values["bus_id"] = bus_id(text)
        else:
            bits = _reason(name, text)
            reasons = reasons if bits is None else (reasons or 0) | bits
    return {**values, "reasons": reasons}


def _reason(name: str, text: str) -> int | None:
    """The bits that one column of reasons sets; None where it is another column, or unknown."""
    prefix, _, reason = name.partition(".")
    if prefix not in REASONS:
        return None
    if reason == "active":
        return mask(text)
    state = text.lower()
    if reason not in COLUMNS or state not in ("active", "not active"):
        return None
    return COLUMNS[reason] if state == "active" else 0
