"""Turn what a file or command line holds into the type that a setting has."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any

from steptally.errors import InputError
from steptally.job.architecture import Architecture
from steptally.job.cluster import Cluster
from steptally.job.layout import Layout
from steptally.job.pattern import evaluate_pattern
from steptally.job.recipe import Recipe

PARTS = (Architecture, Layout, Recipe, Cluster)
WORDS_FOR_TRUE = {"true", "yes", "on", "1"}
WORDS_FOR_FALSE = {"false", "no", "off", "0"}
WORDS_FOR_NONE = {"none", "null", "~", ""}
# Beyond any model or cluster; larger numbers are typing errors, and would overflow floats.
LARGEST_NUMBER = 10**18


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One field of a job: its name, the part that holds it, its type and allowed values."""

    name: str
    part: type
    types: tuple[Any, ...]
    choices: tuple[str, ...]
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None


@cache
def settings() -> dict[str, Setting]:
    """Every setting that a job has, by Megatron's name."""
    found = {}
    for part in PARTS:
        hints = typing.get_type_hints(part)
        for field in dataclasses.fields(part):
            hint = hints[field.name]
            union = isinstance(hint, types.UnionType)
            found[field.name] = Setting(
                name=field.name,
                part=part,
                types=typing.get_args(hint) if union else (hint,),
                choices=tuple(field.metadata.get("choices", ())),
                at_least=field.metadata.get("at_least"),
                above=field.metadata.get("above"),
                at_most=field.metadata.get("at_most"),
            )
    return found


def coerce(setting: Setting, value: object) -> object:
    """Return `value` as the setting's type; raise `InputError` with the rule where it is not.

    >>> coerce(settings()["hidden_size"], "4_096")
    4096
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in WORDS_FOR_NONE):
        if types.NoneType in setting.types:
            return None
        # As a word, `none` can be a choice (moe_router_load_balancing_type); nothing cannot.
        if "none" not in setting.choices and (str not in setting.types or not value):
            raise _wrong(setting, value)
    if isinstance(value, str) and any(typing.get_origin(t) is tuple for t in setting.types):
        value = _listed(setting, value)
    for wanted in setting.types:
        converted = _as(wanted, value)
        if converted is not None:
            return _checked_range(setting, _checked_choice(setting, converted))
    raise _wrong(setting, value)


def shown(value: object) -> str:
    """A value as it stands in a message: its repr, cut where it is long."""
    text = repr(value) if not isinstance(value, str) else repr(value[:200])
    return text if len(text) <= 80 else f"{text[:76]}…'"


def whole_number(name: str, value: object) -> int:
    """`value` as an integer; raises `InputError` with the setting's name where it is none."""
    number = _as_int(value)
    if number is None:
        raise InputError(f"{name} is {shown(value)}: it must be a whole number.")
    return number


def truth(name: str, value: object) -> bool:
    """`value` as a yes or no; raises `InputError` with the setting's name where it is neither."""
    answer = _as_bool(value)
    if answer is None:
        raise InputError(f"{name} is {shown(value)}: it must be true or false.")
    return answer


def _listed(setting: Setting, text: str) -> object:
    """Split a text that spells a list: `[0]*3+[1]*2`, `0,1,1`, `core_attn mlp`, `['p2p']`."""
    if "*" in text or ("+" in text and "[" in text):
        return evaluate_pattern(setting.name, text)
    marked = any(mark in text for mark in "[(, ")
    if int in setting.types and not marked:
        return text  # a single number, as in moe_layer_freq 2
    return [item.strip("'\"") for item in text.strip("()[] ").replace(",", " ").split()]


def _as(wanted: Any, value: object) -> object | None:
    """Convert to one type; None where the value does not have that form."""
    if wanted is bool:
        return _as_bool(value)
    if wanted is int:
        return _as_int(value)
    if wanted is float:
        return _as_float(value)
    if wanted is str:
        return value.strip() if isinstance(value, str) else _scalar_text(value)
    if typing.get_origin(wanted) is tuple:
        return _as_tuple(typing.get_args(wanted)[0], value)
    return None


def _as_bool(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in WORDS_FOR_TRUE:
        return True
    return False if word in WORDS_FOR_FALSE else None


def _scalar_text(value: object) -> str | None:
    return str(value) if isinstance(value, int | float) else None


def _as_int(value: object) -> int | None:
    """A whole number, also where it is written 4096.0 or 1e6, as YAML and JSON files do."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    number: int | float | None
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = _as_float(value)
    if number is None or not abs(number) <= LARGEST_NUMBER:  # so that NaN is no number either
        return None
    return int(number) if number == int(number) else None


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None  # drops nan and inf alike


def _as_tuple(element: Any, value: object) -> tuple[object, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    items = tuple(_as(element, item) for item in value)
    return None if not items or None in items else items


def _checked_choice(setting: Setting, value: object) -> object:
    if not setting.choices or value in setting.choices:
        return value
    raise InputError(
        f"{setting.name} is {shown(value)}: it must be one of "
        f"{', '.join(map(repr, setting.choices))}."
    )


def _checked_range(setting: Setting, value: object) -> object:
    """The value, where it lies within what its setting can mean (`metadata` of the field)."""
    if not isinstance(value, int | float):
        return value
    low, above, high = setting.at_least, setting.above, setting.at_most
    rule = None
    if low is not None and value < low:
        rule = f"at least {low}"
    elif above is not None and value <= above:
        rule = f"more than {above}"
    elif high is not None and value > high:
        rule = f"at most {high}"
    if rule:
        raise InputError(f"{setting.name} is {value}: it must be {rule}.")
    return value


def _wrong(setting: Setting, value: object) -> InputError:
    if setting.choices:
        expected = f"one of {', '.join(map(repr, setting.choices))}"
    else:
        expected = " or ".join(_type_name(wanted) for wanted in setting.types)
        if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            expected = "a number that a model or cluster can have (at most 10^18)"
    return InputError(f"{setting.name} is {shown(value)}: it must be {expected}.")


def _type_name(wanted: Any) -> str:
    names = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "a word",
        types.NoneType: "none",
    }
    return names.get(wanted, "a list")
