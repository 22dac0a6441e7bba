"""Read rows of published results: the form of docs/cli/validate.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from steptally.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One row: what was trained on what, what was measured, and who says so.

    `values` is the row as it stands; `source` is its source as one line of text.
    """

    id: str
    model: str
    source: str
    values: Mapping[str, Any]

    @property
    def architecture(self) -> Mapping[str, Any]:
        """The `arch` object, empty where the row has none."""
        return _mapping(self.values.get("arch"))

    @property
    def measured(self) -> Mapping[str, Any]:
        """The `measured` object, empty where the row has none."""
        return _mapping(self.values.get("measured"))

    @property
    def notes(self) -> str:
        """Free text."""
        return str(self.values.get("notes") or "")

    def number(self, name: str) -> float | None:
        """A number of the row; None where it is absent or no number above zero."""
        return _positive(self.values.get(name))

    def measure(self, name: str) -> float | None:
        """A measured number; None where it is absent or no number above zero."""
        return _positive(self.measured.get(name))

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """The measured rate: as stated, or of a step time, batch and number of devices."""
        stated = self.measure("tokens_per_s_per_gpu")
        if stated is not None:
            return stated
        step_time, batch = self.measure("step_time_s"), self.number("gbs")
        seq, devices = self.number("seq"), self.number("gpus")
        if step_time is None or batch is None or seq is None or devices is None:
            return None
        return batch * seq / step_time / devices


def read_published(path: Path) -> list[PublishedRow]:
    """The rows of a YAML file. Raises `InputError` where it holds something else."""
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as rows of results: {reason}.") from error
    if not isinstance(content, list) or not content:
        raise InputError(
            f"{path} holds {type(content).__name__}: it must be a YAML list of rows, each with id, "
            f"model, source, arch, seq and measured (docs/cli/validate.md)."
        )
    rows = [_row(value, position, path) for position, value in enumerate(content)]
    _unique([row.id for row in rows], path)
    return rows


def _row(value: object, position: int, path: Path) -> PublishedRow:
    if not isinstance(value, dict) or not value.get("id"):
        raise InputError(f"{path}: entry {position + 1} is no row with an id; give it one.")
    source = value.get("source")
    words = source.values() if isinstance(source, dict) else [source or ""]
    return PublishedRow(
        id=str(value["id"]),
        model=str(value.get("model") or ""),
        source="; ".join(str(word) for word in words),
        values=value,
    )


def _unique(names: Sequence[str], path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{path} holds two rows with id {name}: ids must be different.")
        seen.add(name)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < float("inf") else None
