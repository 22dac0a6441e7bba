"""Buffers the records of steps and appends them to `steps.jsonl`, many at a time."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One step as its rank saw it. `loss` and `grad_norm` may still be tensors on a device."""

    step: int
    rank: int
    start_unix_ns: int
    duration_ns: int
    tokens: int | None
    traced: bool
    warmup: bool
    loss: Any = None
    grad_norm: Any = None


def append_steps(path: Path, records: list[StepRecord], peaks: Mapping[str, int]) -> None:
    """Append all records in one write. Reads values off the device: may wait for it.

    `peaks` are high-water marks of memory up to now: the same in all lines of one write.
    """
    lines = "".join(json.dumps(_as_json(record, peaks)) + "\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        _lock(file)  # without it, appends of several hosts to one file on NFS overwrite each other
        file.write(lines.encode("utf-8"))


def _lock(file: Any) -> None:
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX)
    except (ImportError, OSError):  # a file system without locks: appending is all there is
        return


def _as_json(record: StepRecord, peaks: Mapping[str, int]) -> dict[str, object]:
    values = {name: _number(name, getattr(record, name)) for name in ("loss", "grad_norm")}
    line: dict[str, object] = {
        "step": record.step,
        "rank": record.rank,
        "start_unix_ns": record.start_unix_ns,
        "duration_ns": record.duration_ns,
        "tokens": record.tokens,
        "traced": record.traced,
        "warmup": record.warmup,
        **{name: value if _is_finite(value) else None for name, value in values.items()},
        **peaks,
    }
    # JSON has no NaN. A loss that is not a number is news, and must not look like one not reported.
    not_finite = [
        name for name, value in values.items() if value is not None and not _is_finite(value)
    ]
    return {**line, "not_finite": not_finite} if not_finite else line


def _number(name: str, value: Any) -> float | None:
    """What the loop set as a float. What is no number must not end its training: it is left out."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch: more than one element
        warnings.warn(
            f"steptally records no {name} where a step's is of type {type(value).__name__} and not "
            f"one number: set step.{name} to a number or a tensor of one element.",
            stacklevel=2,
        )
        return None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
