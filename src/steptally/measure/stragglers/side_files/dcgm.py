"""DCGM's readings: `dcgmi dmon` text, dcgm-exporter's Prometheus text, or a CSV of its fields.

Names of fields: dcgm_fields.h; short names of `dcgmi dmon`'s columns: dcgmlib/src/dcgm_fields.cpp
(NVIDIA/DCGM). Samples of the exporter carry `gpu`, `UUID`, `pci_bus_id` and `Hostname` as labels.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Any

from steptally.errors import InputError
from steptally.measure.stragglers.side_files.readings import bus_id, dcgm_reading, mask, whole
from steptally.measure.stragglers.side_files.rows import GpuRows

FIELDS: Mapping[str, str] = {
    "DCGM_FI_DEV_SM_CLOCK": "sm_mhz",
    "DCGM_FI_DEV_MAX_SM_CLOCK": "sm_max_mhz",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": "power_limit_w",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "power_limit_w",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_SLOWDOWN_TEMP": "slowdown_c",
    "DCGM_FI_DEV_GPU_UTIL": "utilization_percent",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "reasons",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "reasons",
    "DCGM_FI_DEV_XID_ERRORS": "xid",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pcie_replays",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "nvlink_errors",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "nvlink_errors",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "nvlink_errors",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "nvlink_recoveries",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_corrected",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_uncorrected",
}
# Counters of several fields come to one number.
ADDED = ("nvlink_errors",)
SHORT: Mapping[str, str] = {
    "SMCLK": "sm_mhz",
    "SMMAX": "sm_max_mhz",
    "POWER": "power_w",
    "PMLMT": "power_limit_w",
    "EPLMT": "power_limit_w",
    "TMPTR": "temperature_c",
    "SDTMP": "slowdown_c",
    "GPUTL": "utilization_percent",
    "DVCCTR": "reasons",
    "XIDER": "xid",
    "RPCTR": "pcie_replays",
    "ESVTL": "ecc_corrected",
    "EDVTL": "ecc_uncorrected",
}
DMON_HEADER = re.compile(r"^\s*#\s*Entity\s+(?P<names>\S.*)$")
DMON_ROW = re.compile(r"^\s*GPU\s+(?P<index>\d{1,9})\s+(?P<cells>\S.*)$")
SAMPLE = re.compile(
    r"^\s*(?P<name>DCGM_(?:FI|EXP)_\w+)\{(?P<labels>.*)\}\s+(?P<value>\S+)(?:\s+(?P<time>\d+))?\s*$"
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_dcgm_dmon(lines: Iterable[str], rows: GpuRows) -> None:
    """Add every GPU's row of `dcgmi dmon`; it prints neither time nor host.

    Raises `InputError` where none of its columns is one that is read.
    """
    names: list[str] = []
    for line in lines:
        if header := DMON_HEADER.match(line):
            names = header["names"].split()
            if set(names).isdisjoint(SHORT):
                raise InputError(
                    f"dcgmi dmon printed the columns {', '.join(names)}, none of which is read "
                    f"({', '.join(SHORT)}): run `dcgmi dmon -e 100,112,150,155,164,203,230,202`."
                )
        elif row := DMON_ROW.match(line):
            cells = row["cells"].split()
            if len(cells) != len(names):
                rows.lost += 1
                continue
            values: dict[str, Any] = {"index": int(row["index"])}
            for name, cell in zip(names, cells, strict=True):
                _put(values, SHORT.get(name), cell)
            rows.add(values)


def read_dcgm_exporter(lines: Iterable[str], rows: GpuRows) -> None:
    """Add the samples of one or more scrapes; a field that comes again begins a GPU's next row."""
    open_rows: dict[tuple[str | None, ...], dict[str, Any]] = {}
    seen: dict[tuple[str | None, ...], set[str]] = {}
    for line in lines:
        found = SAMPLE.match(line)
        if found is None:
            rows.lost += line.lstrip().startswith("DCGM_")
            continue
        labels = dict(LABEL.findall(found["labels"]))
        field = FIELDS.get(found["name"])
        if field is None or "gpu" not in labels or labels.get("GPU_I_ID"):
            continue  # another field, no GPU's, or of a MIG instance
        place = _place(labels)
        key = (place["host"], place["uuid"], str(place["index"]))
        if found["name"] in seen.setdefault(key, set()):
            rows.add(open_rows.pop(key))
            seen[key] = set()
        seen[key].add(found["name"])
        values = open_rows.setdefault(key, {**place, "time": found["time"]})
        error = labels.get("err_code") if field == "xid" else None
        _put(values, field, error or found["value"])
    for values in open_rows.values():
        rows.add(values)


def read_dcgm_csv(lines: Iterable[str], rows: GpuRows) -> None:
    """Add the rows of a CSV whose columns are DCGM's fields, beside `gpu` and what else is known.

    Raises `InputError` where no column tells which GPU a row is of.
    """
    reader = csv.DictReader((line.replace("\0", "") for line in lines), skipinitialspace=True)
    names = {(name or "").strip().lower() for name in reader.fieldnames or ()}
    if names.isdisjoint({"gpu", "gpu_id", "uuid"}):
        raise InputError(
            "a CSV of DCGM's fields needs a column `gpu` or `UUID` that tells which GPU a row is "
            f"of; it has {', '.join(sorted(names))}."
        )
    for record in reader:
        if None in record or None in record.values():
            rows.lost += 1
            continue
        cells = {name.strip(): (text or "").strip() for name, text in record.items()}
        labels = {name.lower(): text for name, text in cells.items()}
        labels.setdefault("gpu", labels.get("gpu_id", ""))
        values = {**_place(labels), "time": labels.get("timestamp") or labels.get("time")}
        for name, text in cells.items():
            _put(values, FIELDS.get(name), text)
        rows.add(values)


def is_dcgm_exporter(lines: Iterable[str]) -> bool:
    """Whether one of the first lines is a sample of dcgm-exporter."""
    return any(SAMPLE.match(line) for line in lines)


def is_dcgm_csv(header: str) -> bool:
    """Whether a header names fields of DCGM.

    >>> is_dcgm_csv("timestamp,gpu,DCGM_FI_DEV_SM_CLOCK")
    True
    """
    return any(name.strip() in FIELDS for name in header.split(","))


def _place(labels: Mapping[str, str]) -> dict[str, Any]:
    lower = {name.lower(): value for name, value in labels.items()}
    return {
        "host": lower.get("hostname") or lower.get("host") or None,
        "index": whole(lower.get("gpu")),
        "uuid": lower.get("uuid") or None,
        "bus_id": bus_id(lower.get("pci_bus_id")),
    }


def _put(values: dict[str, Any], field: str | None, text: str) -> None:
    """Set a field's value; several counters of one field add up."""
    if field is None:
        return
    value = mask(text) if field == "reasons" else dcgm_reading(text)
    if value is None:
        return
    values[field] = values.get(field, 0) + value if field in ADDED else value


def is_dcgm_dmon(lines: Iterable[str]) -> bool:
    """Whether one of the first lines is the header of `dcgmi dmon`."""
    return any(DMON_HEADER.match(line) for line in lines)
