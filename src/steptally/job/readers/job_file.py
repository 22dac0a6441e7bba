"""steptally's own job file: YAML, one `name: value` a line, with Megatron-LM's names.

Settings may be grouped under `architecture`, `layout`, `recipe` and `cluster`, or stand flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from steptally.errors import InputError

GROUPS = ("architecture", "layout", "recipe", "cluster")


def read_job_file(path: Path) -> Mapping[str, object]:
    """Return the settings of a job file, flat. Raises `InputError` for what is no such file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as a YAML job file: {reason}.") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{path} holds {_what(content)}: a job file maps Megatron's names to values, "
            f"as 'num_layers: 4'."
        )
    return _flat(content, path)


def _flat(content: Mapping[object, object], path: Path) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in content.items():
        name = str(key).lstrip("-").replace("-", "_")
        inner = {name: value}
        if name in GROUPS:
            if not isinstance(value, dict):
                raise InputError(f"{path}: {name} holds {_what(value)}: it must hold settings.")
            inner = _flat(value, path)
        for inner_name, inner_value in inner.items():
            if inner_name in values:
                raise InputError(f"{path} states {inner_name} twice: keep one.")
            values[inner_name] = inner_value
    return values


def _what(content: object) -> str:
    if content is None:
        return "nothing"
    return f"a {type(content).__name__}"
