"""What a reader gives: settings as the source states them, and what it has to say about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A value that the source leaves to the outside: its text, and the sentence that says why."""

    text: str
    why: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Settings under the source's own names, not yet resolved.

    `assumed` maps a setting that the reader had to choose to the reason; `ignored` is what it knows
    to change no account; `notes` are sentences for the user; `names` are the words by which the
    source calls its model: file and run first, then paths. `consumed` are the variables that the
    user supplied and the source uses.
    """

    values: Mapping[str, object]
    name: str = ""
    assumed: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    consumed: frozenset[str] = frozenset()
