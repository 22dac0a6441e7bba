"""Parse Megatron-LM's arguments as its own parser would: by the table of its options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from steptally.errors import InputError
from steptally.job.catalog.options import Option, options_by_flag
from steptally.job.readers.reading import Unresolved
from steptally.job.readers.shell_values import Field

# How alike an unknown flag must be to a known one to be called a typing error; forks have flags
# of their own that only resemble Megatron's.
TYPING_ERROR = 0.9


class Place(NamedTuple):
    """Where flags stand: the source's name, and the variables that a condition there decides."""

    source: str
    undecided: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class Arguments:
    """Settings by the name that each flag sets, and sentences about odd ones."""

    values: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def flag_name(word: str) -> str:
    """The flag of `--flag` or `--flag=value`, with hyphens; empty where the word is no flag."""
    if not word.startswith("--") or len(word) < 3:
        return ""
    return word.partition("=")[0].replace("_", "-")


def is_megatron_flag(word: str) -> bool:
    """Whether a word is a flag of Megatron-LM."""
    return flag_name(word) in options_by_flag()


def parse_arguments(
    words: Sequence[Field], source: str, undecided: Mapping[str, int] | None = None
) -> Arguments:
    """Read flags and their values; a later flag overrides an earlier one, as in Megatron.

    `undecided` maps variables to the line of the condition that alone sets them. Unknown flags are
    kept under their own name. Raises `InputError` for a flag without its value.
    """
    found = Arguments()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag = flag_name(word.text)
        if not flag:
            _outside_any_flag(word, found)
            continue
        values = _values(words, position)
        option = options_by_flag().get(flag)
        if "=" in word.text:
            text = word.text.partition("=")[2]
            values = [Field(text=text, line=word.line, missing=word.missing)]
        else:
            taken = _taken(option, values)
            values = values[:taken]
            position += taken
        _set(found, flag, option, values, word, Place(source, undecided or {}))
    return found


def _values(words: Sequence[Field], start: int) -> list[Field]:
    """The words up to the next flag."""
    end = start
    while end < len(words) and not flag_name(words[end].text):
        end += 1
    return [word for word in words[start:end] if word.text != "\\"]


def _taken(option: Option | None, values: Sequence[Field]) -> int:
    """How many of the words after a flag are its values."""
    if option is None or option.action == "list":
        return len(values)
    return min(1, len(values)) if option.action == "value" else 0


def _set(
    found: Arguments,
    flag: str,
    option: Option | None,
    values: Sequence[Field],
    word: Field,
    place: Place,
) -> None:
    if option is None:
        name = flag.lstrip("-").replace("-", "_")
        texts = [value.text for value in values]
        found.values[name] = (texts[0] if len(texts) == 1 else texts) if texts else True
        near = get_close_matches(flag, options_by_flag(), n=1, cutoff=TYPING_ERROR)
        if near:
            found.notes.append(
                f"{flag} is not a flag of Megatron-LM (did you mean '{near[0]}'?): it is kept as "
                f"unknown."
            )
        return
    value: object
    if option.action in ("true", "false"):
        value = (option.action == "true") != (bool(values) and values[0].text.lower() == "false")
    elif option.action == "either":
        value = not flag.startswith("--no-")
    elif not values:
        value = _no_value(flag, option, word, place)
    else:
        resolved = [_resolved(flag, option, item, place) for item in values]
        value = resolved if option.action == "list" else resolved[0]
    before = found.values.get(option.dest)
    if before is not None and option.effect != "none" and str(before) != str(value):
        found.notes.append(f"{flag} is stated twice: {before}, then {value}; the last one counts.")
    found.values[option.dest] = value


def _no_value(flag: str, option: Option, word: Field, place: Place) -> object:
    if option.effect == "none" or option.action == "list":
        return None
    raise InputError(
        f"{place.source} line {word.line}: {flag} has no value: the script looks truncated, or a "
        f"variable there is empty. Give it one, or pass --set {option.dest}=VALUE."
    )


def _resolved(flag: str, option: Option, item: Field, place: Place) -> object:
    if not item.missing:
        return item.text
    condition = place.undecided.get(item.missing)
    why = "defines it only" if condition else "does not define"
    what = f"under the condition around line {condition}" if condition else item.missing
    supply = f", or --set {item.missing}=VALUE" if re.fullmatch(r"\w+", item.missing) else ""
    return Unresolved(
        text=item.text,
        why=(
            f"{place.source} line {item.line}: {flag} is {item.text}, and the script {why} {what}: "
            f"pass --set {option.dest}=VALUE{supply}."
        ),
    )


def _outside_any_flag(word: Field, found: Arguments) -> None:
    if word.missing and word.missing.isidentifier():
        found.notes.append(
            f"{word.text} is not defined in the script: it is read as empty; if it holds flags, "
            f"pass --set {word.missing}='FLAGS'."
        )
