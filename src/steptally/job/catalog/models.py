"""Load the model catalogue, and recognise its models by what people call them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A preset: settings in Megatron-LM's names, and the published parameter count with source.

    `parameters` is an exact int where the checkpoint is known to the unit, else the rounded
    figure of the paper; multi-token-prediction modules are not in it. `active` is what one token
    uses, where that differs.
    """

    name: str
    title: str
    settings: Mapping[str, object]
    parameters: int | float
    source: str
    active: float | None = None
    aliases: tuple[str, ...] = ()
    note: str = ""


@cache
def models() -> Mapping[str, Model]:
    """Every model of the catalogue by its name, in the order of the file."""
    text = Path(__file__).with_name("models.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = {}
    for name, table in tomllib.loads(text).items():
        base = tables.get(table.get("like", ""), {})
        settings = {**base.get("settings", {}), **table["settings"]}
        tables[name] = {**base, **table, "settings": settings}
        if "aliases" not in table:
            tables[name]["aliases"] = []
    return {
        name: Model(
            name=name,
            title=table["title"],
            settings=table["settings"],
            parameters=table["parameters"],
            active=table.get("active"),
            source=table["source"],
            aliases=tuple(table["aliases"]),
            note=table.get("note", ""),
        )
        for name, table in tables.items()
        if not name.startswith("style-")
    }


def plain(name: str) -> str:
    """A spelling without case and separators; the point of a size stays apart, as in 1.3b.

    >>> plain("Llama-3.1_8B")
    'llama3p18b'
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?<=\d).(?=\d)", "p", name.lower()))


@cache
def _by_spelling() -> Mapping[str, Model]:
    return {
        plain(spelling): model
        for model in models().values()
        for spelling in (model.name, *model.aliases)
    }


def find_model(name: str) -> Model | None:
    """The model of exactly this name or alias.

    >>> find_model("Llama3-8B").parameters
    8030261248
    """
    return _by_spelling().get(plain(name))


def find_named(text: str) -> Model | None:
    """The model whose name stands within a longer text: a path, a run name, a tokenizer.

    >>> find_named("runs/llama3_8b_h100_fp8").name
    'llama-3-8b'
    """
    words = plain(text)
    found = [spelling for spelling in _by_spelling() if _stands_in(spelling, words)]
    return _by_spelling()[max(found, key=len)] if found else None


def _stands_in(spelling: str, words: str) -> bool:
    """Within the text and not cut out of a longer number: gpt313b is not in gpt3130b."""
    if spelling not in words:
        return False
    if spelling.isalpha():
        return spelling == words  # `bloom`: too common within other words
    return re.search(rf"(?<![a-z0-9]p){spelling}(?![0-9])", words) is not None


def nearest_models(name: str) -> list[str]:
    """Catalogue names that a mistyped one may have meant."""
    near = get_close_matches(plain(name)[:60], list(_by_spelling()), n=3, cutoff=0.5)
    return list(dict.fromkeys(_by_spelling()[spelling].name for spelling in near))
