"""The text of `nvidia-smi -q`: blocks by indentation, one per GPU.

Read are clocks and what holds them down (`Clocks Event Reasons`, formerly `Clocks Throttle
Reasons`), power, temperature, utilization, ECC and row remapping. A block cut out of it, as people
paste it into issues, is read as one GPU without a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from steptally.measure.stragglers.side_files.readings import bus_id, reading
from steptally.measure.stragglers.side_files.rows import GpuRows, SideFinding
from steptally.measure.stragglers.side_files.throttle import LINES

MARKS = re.compile(r"NVSMI LOG|Clocks (Event|Throttle) Reasons\s*$", re.MULTILINE)
GPU = re.compile(r"^GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
FIELD = re.compile(r"^(?P<indent>\s*)(?P<name>[^:]+?)\s+:\s?(?P<value>.*?)\s*$")
BLOCKS = ("clocks event reasons", "clocks throttle reasons")
COUNTERS = "clocks event reasons counters"
# Held for this long since the driver was loaded, a slowdown of the past is worth a word.
NOTABLE_COUNTER_US = 1e6

Fields = dict[tuple[str, ...], str]


def read_nvidia_query(lines: Iterable[str], rows: GpuRows, source: str) -> list[SideFinding]:
    """Add one reading per GPU; findings are what a sample has no column for."""
    findings: list[SideFinding] = []
    for bus, time, fields in _gpus(lines):
        sample = _sample(fields)
        if all(value is None for value in sample.values()):
            rows.lost += 1
            continue
        rows.add({**sample, "bus_id": bus, "time": time})
        findings += _counters(fields, bus, sample["uuid"], source)
        findings += _memory(fields, bus, sample["uuid"], source)
    return findings


def _gpus(lines: Iterable[str]) -> Iterable[tuple[str | None, str | None, Fields]]:
    """Bus id, time and fields (by their path of names, in lower case) of each GPU."""
    bus: str | None = None
    time: str | None = None
    fields: Fields = {}
    stack: list[tuple[int, str]] = []
    for raw in lines:
        line = raw.rstrip().expandtabs()
        if found := GPU.match(line):
            if fields and bus:  # before the first GPU stand the driver's and CUDA's versions
                yield bus, time, fields
            bus, fields, stack = bus_id(found["bus"]), {}, []
            continue
        if not line.strip():
            continue
        field = FIELD.match(line)
        name = (field["name"] if field else line).strip().lower()
        if field and name == "timestamp":
            time = field["value"]
            continue
        indent = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if field:
            fields[(*(name for _, name in stack), name)] = field["value"]
        stack.append((indent, name))  # a field may have fields below it: HW Slowdown has
    if fields:
        yield bus, time, fields


def _sample(fields: Mapping[tuple[str, ...], str]) -> dict[str, Any]:
    power = "gpu power readings" if _has(fields, "gpu power readings") else "power readings"
    return {
        "uuid": _first(fields, ("gpu uuid",)),
        "reasons": _reasons(fields),
        "sm_mhz": reading(_first(fields, ("clocks", "sm"))),
        "sm_max_mhz": reading(_first(fields, ("max clocks", "sm"))),
        "power_w": _number(
            fields,
            (power, "power draw"),
            (power, "average power draw"),
            (power, "instantaneous power draw"),
        ),
        "power_limit_w": _number(
            fields,
            (power, "current power limit"),
            (power, "enforced power limit"),
            (power, "power limit"),
        ),
        "temperature_c": reading(_first(fields, ("temperature", "gpu current temp"))),
        "slowdown_c": reading(_first(fields, ("temperature", "gpu slowdown temp"))),
        "utilization_percent": reading(_first(fields, ("utilization", "gpu"))),
        "ecc_corrected": _ecc(fields, "correctable", "single bit"),
        "ecc_uncorrected": _ecc(fields, "uncorrectable", "double bit"),
    }


def _reasons(fields: Mapping[tuple[str, ...], str]) -> int | None:
    """The mask of the block; nested lines (HW Thermal Slowdown) count like the others."""
    states = {
        path[-1]: value.lower()
        for path, value in fields.items()
        if any(part in BLOCKS for part in path[:-1]) and path[-1] in LINES
    }
    known = {name: state for name, state in states.items() if state in ("active", "not active")}
    if not known:
        return None
    bits = 0
    for name, state in known.items():
        bits |= LINES[name] if state == "active" else 0
    return bits


def _ecc(fields: Mapping[tuple[str, ...], str], word: str, old: str) -> float | None:
    """Volatile ECC errors: the sum of the parts (`DRAM Uncorrectable`), or the old total."""
    found = []
    for path, value in fields.items():
        if "volatile" not in path:
            continue
        is_part = path[-1].split()[1:2] == [word]
        is_total = old in path and path[-1] == "total"
        if (is_part or is_total) and (number := reading(value)) is not None:
            found.append(number)
    return sum(found) if found else None


def _counters(
    fields: Mapping[tuple[str, ...], str], bus: str | None, uuid: str | None, source: str
) -> list[SideFinding]:
    """How long hardware slowdowns held since the driver was loaded: of the past, so no fault."""
    findings = []
    for path, value in fields.items():
        if COUNTERS not in path or not path[-1].startswith("hw "):
            continue
        held = reading(value)
        if held is not None and held >= NOTABLE_COUNTER_US:
            findings.append(
                SideFinding(
                    severity="notable",
                    subject="gpu",
                    sentence=(
                        f"{path[-1].replace('hw', 'HW', 1)} has held for {held / 1e6:.1f} s since "
                        "the driver was loaded, whenever that was"
                    ),
                    source=source,
                    gpu_uuid=uuid,
                    bus_id=bus,
                )
            )
    return findings


def _memory(
    fields: Mapping[tuple[str, ...], str], bus: str | None, uuid: str | None, source: str
) -> list[SideFinding]:
    """Memory that could not be mended: failed row remapping, SRAM errors over the threshold."""
    bad = {
        ("remapped rows", "remapping failure occurred"): "a row of memory could not be remapped",
        ("ecc errors", "aggregate", "sram threshold exceeded"): (
            "uncorrectable SRAM errors are over the threshold: the GPU is due for replacement"
        ),
    }
    return [
        SideFinding(
            severity="fault",
            subject="gpu",
            sentence=sentence,
            source=source,
            gpu_uuid=uuid,
            bus_id=bus,
        )
        for path, sentence in bad.items()
        if (_first(fields, path) or "").lower() == "yes"
    ]


def _has(fields: Mapping[tuple[str, ...], str], block: str) -> bool:
    return any(block in path[:-1] for path in fields)


def _number(fields: Mapping[tuple[str, ...], str], *paths: tuple[str, ...]) -> float | None:
    """The first of some fields that holds a number."""
    numbers = (reading(_first(fields, path)) for path in paths)
    return next((number for number in numbers if number is not None), None)


def _first(fields: Mapping[tuple[str, ...], str], end: tuple[str, ...]) -> str | None:
    """The value of the field whose path ends so; the block must have just that name."""
    return next((value for path, value in fields.items() if path[-len(end) :] == end), None)
