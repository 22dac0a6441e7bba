"""What each source counts, from one committed table."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from steptally.predict.published.rows import PublishedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One entry of sources.toml, where each field is explained."""

    matches: tuple[str, ...]
    convention: str
    why: str
    vocabulary: str = "stated"
    style: str = ""
    layers: str = ""
    peak_tflops: float | None = None
    dated_before: str = ""
    tables: tuple[str, ...] = ()

    def covers(self, row: PublishedRow) -> bool:
        """Whether the row comes from this source, and from this part of it."""
        if not all(text in row.source for text in self.matches):
            return False
        if self.tables:
            table = str((row.values.get("source") or {}).get("table", "")).split(" ")[0]
            return table in self.tables
        if self.dated_before:
            date = re.search(r"\bdate (\d\d-\d\d)", row.notes)
            return date is not None and date[1] < self.dated_before
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Settings of a model family that the row form cannot say."""

    model: str
    why: str
    settings: dict[str, Any] = field(default_factory=dict)


@cache
def sources() -> tuple[Source, ...]:
    """Every source of the table, in its order."""
    return tuple(
        Source(**{key: _frozen(value) for key, value in entry.items()})
        for entry in _table()["source"]
    )


@cache
def families() -> tuple[Family, ...]:
    """Every model family of the table."""
    return tuple(Family(**entry) for entry in _table()["family"])


def find_source(row: PublishedRow) -> Source | None:
    """The first source that covers the row; None where the table has none."""
    return next((source for source in sources() if source.covers(row)), None)


def _table() -> dict[str, Any]:
    text = files(__package__).joinpath("sources.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _frozen(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value
