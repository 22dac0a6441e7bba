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

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from steptally import strict_json
from steptally.errors import InputError, WriteError

FORMAT = "steptally-run/1"
MOST_RANKS = 1_000_000  # beyond every job: more is damage, and would take hours to go through
# Tells a recorder which directory its launcher has chosen.
ENVIRONMENT_VARIABLE = "STEPTALLY_RUN_DIRECTORY"


class _Rank(msgspec.Struct):
    rank: int
    host: str | None = None
    device: str | None = None


class _Injected(msgspec.Struct):
    spec: str


class _DescribedJob(msgspec.Struct):
    name: str = ""
    source: str = ""
    assumed: list[str] = []


class _Manifest(msgspec.Struct):
    """The types of the entries that accounts rest on; the others are for people."""

    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    status: str | None = None
    job: _DescribedJob | None = None
    settings: dict[str, Any] | None = None
    ranks: list[_Rank] | None = None
    machine: dict[str, Any] | None = None
    injected: list[_Injected] | None = None


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
            content: dict[str, Any] = strict_json.decode(self.manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.path} is not a run directory: its manifest.json cannot be read ({error})."
            ) from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise InputError(
                f"{self.manifest} has format {found!r}: this steptally reads {FORMAT!r}."
            )
        try:
            msgspec.convert(content, _Manifest)
        except msgspec.ValidationError as error:
            raise InputError(
                f"{self.manifest} is damaged ({error}): restore it, or record again."
            ) from error
        return content

    def read_steps(self) -> Iterator[Any]:
        """What each line holds; None for one that is not JSON, as a last one cut short by a kill.

        Nothing where no step was recorded; raises `InputError` where the file cannot be read.
        """
        try:
            content = self.steps.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{self.steps} cannot be read: {error.strerror}.") from error
        for line in content.splitlines():
            try:
                yield strict_json.decode(line.decode("utf-8"))
            except ValueError:
                yield None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file, or leave what was there: never a half. Raises `WriteError`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise WriteError(
            f"{path} cannot be written ({error.strerror or error}): name a directory on a disk "
            f"that has room and may be written."
        ) from error


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write, so that ranks can share a file."""
    line = json.dumps(record, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
