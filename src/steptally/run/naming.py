"""Where a new run directory is made, and how it is called."""

from __future__ import annotations

import re
import time
from pathlib import Path

from steptally.trace.run_directory import RunDirectory


def new_run_path(parent: Path, name: str) -> Path:
    """`<parent>/<time>-<name>`, absolute, free.

    >>> new_run_path(Path("runs"), "my run").name[15:]
    '-my-run'
    """
    return free_path(parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{_plain(name)}")


def free_path(path: Path) -> Path:
    """This path, or the first of `<path>-2`, `<path>-3`, … that holds no recorded run.

    A loop that is started again by an elastic launcher is told the same directory: its steps must
    not be mixed with those of the run before.
    """
    path = path.absolute()
    candidates = [path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 10_000))]
    return next(candidate for candidate in candidates if not RunDirectory(candidate).steps.exists())


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
