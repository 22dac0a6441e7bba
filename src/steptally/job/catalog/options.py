"""Megatron-LM's command line as data: which flag sets what, how, and whether an account cares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its flags, the name it sets, how it takes a value, default and effect.

    `action` is `value`, `list`, `true`, `false` or `either`; `effect` is `setting`, `derived`,
    `unmodelled` or `none`. Both are explained at the top of `megatron_options.tsv`.
    """

    flags: tuple[str, ...]
    dest: str
    action: str
    default: str
    effect: str


@cache
def options() -> tuple[Option, ...]:
    """Every option of the table."""
    text = Path(__file__).with_name("megatron_options.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        Option(flags=tuple(flags.split()), dest=dest, action=action, default=default, effect=effect)
        for flags, dest, action, default, effect in rows[1:]
    )


@cache
def options_by_flag() -> Mapping[str, Option]:
    """Every option by each of its flags, with hyphens: `--num-layers`."""
    return {flag.replace("_", "-"): option for option in options() for flag in option.flags}


@cache
def options_by_name() -> Mapping[str, Option]:
    """Every option by the name that it sets (`dest`); a switch pair counts once."""
    return {option.dest: option for option in reversed(options())}


def effect_of(name: str) -> str:
    """What a name means for an account; `unmodelled` for one that is not Megatron's."""
    option = options_by_name().get(name)
    return option.effect if option else "unmodelled"


def is_default(name: str, value: object) -> bool:
    """Whether `value` is what Megatron-LM takes anyway, as an argument dump prints it."""
    option = options_by_name().get(name)
    return option is not None and str(value) == option.default
