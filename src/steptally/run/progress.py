"""Follows a run while it trains, and shows it on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from steptally.trace.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """One step that every rank has finished; its wall time is the slowest rank's."""

    step: int
    duration_ns: int
    traced: bool
    loss: float | None


class StepFollower:
    """Reads `steps.jsonl` as it grows; a step is told once all ranks have written it."""

    def __init__(self, directory: RunDirectory, world_size: int) -> None:
        self._path = directory.steps
        self._world_size = world_size
        self._offset = 0
        self._lines_by_step: dict[int, list[dict[str, Any]]] = {}

    def finished_steps(self) -> Iterator[StepProgress]:
        """The steps that have become complete since the last call."""
        for line in self._new_lines():
            lines = self._lines_by_step.setdefault(line["step"], [])
            lines.append(line)
            if len(lines) == self._world_size:
                del self._lines_by_step[line["step"]]
                yield StepProgress(
                    step=line["step"],
                    duration_ns=max(each["duration_ns"] for each in lines),
                    traced=line["traced"],
                    loss=next((each["loss"] for each in lines if each["loss"] is not None), None),
                )

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from map(json.loads, whole.splitlines())


@contextmanager
def shown_progress(steps: int, *, file: TextIO | None = None) -> Iterator[Callable[..., None]]:
    """Show each step on `file` (stderr): a bar on a terminal, a line a step elsewhere.

    Yields the function to hand to `launch` as `on_progress`.
    """
    file = sys.stderr if file is None else file
    if not file.isatty():
        yield lambda progress: print(_sentence(progress, steps), file=file, flush=True)
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=file), transient=True) as bar:
        task = bar.add_task("starting ranks", total=steps)

        def show(progress: StepProgress) -> None:
            bar.update(task, completed=progress.step, description=_sentence(progress, steps))

        yield show


def _sentence(progress: StepProgress, steps: int) -> str:
    """`step 3/20  412.1 ms  loss 5.5012  traced`."""
    parts = [f"step {progress.step}/{steps}", f"{progress.duration_ns / 1e6:.1f} ms"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.traced:
        parts.append("traced")
    return "  ".join(parts)
