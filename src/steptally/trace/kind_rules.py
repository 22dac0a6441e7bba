"""Reads a file of kind rules (`kinds.toml` and a user's own), and says what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steptally.errors import InputError, did_you_mean
from steptally.trace.schema import DEVICE_KINDS, KINDS

FAMILIES = (
    "gemm",
    "attention",
    "norm",
    "elementwise",
    "reduction",
    "copy",
    "communication",
    "other",
)

_LONGEST_NAME = 1 << 14


@dataclass(frozen=True, slots=True)
class NameRule:
    """Names that match `pattern` are `outcome`; `of` limits a kind rule to kinds by category."""

    pattern: re.Pattern[str]
    outcome: str
    of: Sequence[str] = ()

    def matches(self, name: str) -> bool:
        """Whether the pattern is found in the name, or in what is read of an endless one."""
        return self.pattern.search(name, 0, _LONGEST_NAME) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFile:
    """The rules of one file, in its order."""

    categories: Mapping[str, str]
    left_out: frozenset[str]
    kinds: Sequence[NameRule]
    families: Sequence[NameRule]
    suspects: NameRule | None


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _Kind(_Named, forbid_unknown_fields=True):
    kind: str
    of: tuple[str, ...] = ("compute",)


class _Family(_Named, forbid_unknown_fields=True):
    family: str


class _LeftOut(msgspec.Struct, forbid_unknown_fields=True):
    categories: list[str] = []


class _Layout(msgspec.Struct, forbid_unknown_fields=True):
    categories: dict[str, str] = {}
    left_out: _LeftOut = msgspec.field(default_factory=_LeftOut)
    kind: list[_Kind] = []
    family: list[_Family] = []
    suspects: _Named | None = None


def read_rules(path: Path) -> RuleFile:
    """The rules of a TOML file. Raises `InputError`: what is wrong, where, and the rule."""
    layout = _parse(path)
    known = {"kind": KINDS, "family": FAMILIES}
    for kind in (*layout.categories.values(), *(rule.kind for rule in layout.kind)):
        _check(path, "kind", kind, known["kind"])
    for rule in layout.kind:
        for kind in rule.of:
            _check(path, "of", kind, DEVICE_KINDS)
    for family in layout.family:
        _check(path, "family", family.family, known["family"])
    suspects = layout.suspects
    return RuleFile(
        categories={name.lower(): kind for name, kind in layout.categories.items()},
        left_out=frozenset(name.lower() for name in layout.left_out.categories),
        kinds=[NameRule(_compile(path, r.name), r.kind, r.of) for r in layout.kind],
        families=[NameRule(_compile(path, r.name), r.family) for r in layout.family],
        suspects=NameRule(_compile(path, suspects.name), "suspect") if suspects else None,
    )


def _parse(path: Path) -> _Layout:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Layout)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read as a rule file: {error.strerror or error}. Give the path of a "
            "TOML file with the layout of steptally/trace/kinds.toml."
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise InputError(
            f"{path} is no rule file: {_first_line(error)}. It must be TOML with the tables "
            "[categories], [left_out], [[kind]], [[family]] or [suspects], as in "
            "steptally/trace/kinds.toml."
        ) from error


def _check(path: Path, field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        meant = did_you_mean(value, known)
        raise InputError(f"{path}: {field} = {value!r} is none of {', '.join(known)}{meant}.")


def _compile(path: Path, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"{path}: name = {text!r} is no regular expression ({error}): mend it, or escape "
            "what is meant literally with a backslash."
        ) from error


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or ["it cannot be parsed"])[0].rstrip(".")
