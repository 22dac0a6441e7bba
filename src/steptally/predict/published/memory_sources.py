"""How each source's runs keep memory, and what it counted, from one committed table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from steptally.predict.published.rows import PublishedRow

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """One entry of memory_sources.toml, where each field is explained."""

    matches: tuple[str, ...]
    optimizer: str
    unit_bytes: int
    outside: float
    why: str
    refuse: str = ""
    dated_from: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    expert_settings: Mapping[str, Any] = field(default_factory=dict)
    latent_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What its rows are called in a report: who measured, and under which optimizer."""
        return f"{self.matches[0].split('/')[-1] if self.matches else 'own'}, {self.optimizer}"

    def covers(self, row: PublishedRow) -> bool:
        """Whether the row comes from this source, and is not older than the entry."""
        if not all(text in row.source for text in self.matches):
            return False
        if not self.dated_from:
            return True
        date = re.search(r"\bdate (\d\d-\d\d)", row.notes)
        return date is not None and date[1] >= self.dated_from


# A user's own rows: Megatron-LM's usual recipe; a row's `settings` say what else it ran with.
OWN = MemorySource(
    matches=(),
    optimizer="megatron",
    unit_bytes=GIB,
    outside=0.0,
    why="no entry of the table: bf16 and torch's allocator are assumed; add `settings` to the row",
    settings={"bf16": True},
)


@cache
def memory_sources() -> tuple[MemorySource, ...]:
    """Every source of the table, in its order."""
    text = files(__package__).joinpath("memory_sources.toml").read_text(encoding="utf-8")
    return tuple(
        MemorySource(**{**entry, "matches": tuple(entry["matches"])})
        for entry in tomllib.loads(text)["source"]
    )


def find_memory_source(row: PublishedRow) -> MemorySource:
    """The first source that covers the row, else `OWN`."""
    return next((source for source in memory_sources() if source.covers(row)), OWN)
