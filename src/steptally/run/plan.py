"""Where a run is recorded and which of its steps are traced: decided before torch is imported."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from steptally.trace.run_directory import RunDirectory


def choose_directory(told: str | Path | None, name: str, *, parent: Path = Path("runs")) -> Path:
    """The directory told, or `<parent>/<time>-<name>`; numbered where a run is already there.

    A loop that is started again by an elastic launcher gets the same directory told: its steps must
    not be mixed with those of the run before.
    """
    if told is None:
        told = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{_plain(name)}"
    path = Path(told).absolute()
    candidates = [path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 10_000))]
    return next(candidate for candidate in candidates if not RunDirectory(candidate).steps.exists())


def default_traced_steps(steps: int | None, warmup_steps: int) -> tuple[int, ...]:
    """Two consecutive steps after warm-up and after up to three steps that are timed.

    One step, or none, where the run is too short to time at least one step untraced.

    >>> default_traced_steps(20, 2), default_traced_steps(5, 2), default_traced_steps(3, 2)
    ((6, 7), (4,), ())
    """
    left = sys.maxsize if steps is None else steps - warmup_steps
    count = 2 if left >= 5 else 1 if left >= 2 else 0
    first = warmup_steps + min(3, (left - count + 1) // 2) + 1
    return tuple(range(first, first + count))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
