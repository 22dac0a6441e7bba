"""The run directory: what a recorded run leaves on disk, and where.

    runs/<time>-<name>/
        manifest.json            who, what, where: written before the first step
        steps.jsonl              one line per step and rank
        traces/rank<N>.json.gz   Kineto trace of the traced steps
        tally.json               the step's accounts
        report.html              the same for people
        job.json                 what the ranks were started with
        logs/rank<N>.log         what each rank printed; torchrun's own output
        errors/rank<N>.txt       the error of each rank that failed by one

`run` writes it, `measure` reads it, so its format lives below both. Every file is written whole
under another name and then renamed (`steps.jsonl` is appended line by line): a killed run leaves
readable files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptally.errors import InputError

FORMAT = "steptally-run/1"
# Tells a recorder which directory its launcher has chosen.
ENVIRONMENT_VARIABLE = "STEPTALLY_RUN_DIRECTORY"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths inside one run directory."""

    path: Path

    @property
    def manifest(self) -> Path:
        """The resolved job and everything about the machine and software."""
        return self.path / "manifest.json"

    @property
    def steps(self) -> Path:
        """One JSON line per step and rank (`tally.StepRow`, and `peak_memory_bytes`)."""
        return self.path / "steps.jsonl"

    @property
    def tally(self) -> Path:
        """The accounts, as `Tally.dumps` writes them."""
        return self.path / "tally.json"

    @property
    def report(self) -> Path:
        """One offline HTML file."""
        return self.path / "report.html"

    def trace(self, rank: int) -> Path:
        """The Kineto trace of one rank."""
        return self.path / "traces" / f"rank{rank}.json.gz"

    @property
    def job(self) -> Path:
        """What the ranks of `steptally run` were started with."""
        return self.path / "job.json"

    def log(self, rank: int) -> Path:
        """What one rank printed."""
        return self.path / "logs" / f"rank{rank}.log"

    def error(self, rank: int) -> Path:
        """The error that ended one rank: a traceback, or steptally's own message."""
        return self.path / "errors" / f"rank{rank}.txt"

    @property
    def failures(self) -> Path:
        """How each failed rank ended, as torchrun saw it."""
        return self.path / "errors" / "failures.json"

    def traces(self) -> dict[int, Path]:
        """The traces that are there, by rank."""
        found = (self.path / "traces").glob("rank*.json.gz")
        numbers = {path: path.name.removeprefix("rank").split(".")[0] for path in found}
        ranks = {int(number): path for path, number in numbers.items() if number.isdigit()}
        return dict(sorted(ranks.items()))

    def read_manifest(self) -> dict[str, Any]:
        """The manifest; raises `InputError` where there is none or it is of another format."""
        try:
            content: dict[str, Any] = json.loads(self.manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.path} is not a run directory: its manifest.json cannot be read ({error})."
            ) from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise InputError(
                f"{self.manifest} has format {found!r}: this steptally reads {FORMAT!r}."
            )
        return content

    def read_steps(self) -> Iterator[dict[str, Any]]:
        """The step records; a last line cut short by a kill is left out."""
        if not self.steps.exists():
            return
        for line in self.steps.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file, or leave what was there: never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode("utf-8") if isinstance(content, str) else content
    unfinished.write_bytes(data)
    unfinished.replace(path)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write, so that ranks can share a file."""
    line = json.dumps(record, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
