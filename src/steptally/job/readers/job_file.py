"""steptally's own job file: YAML or JSON, one `name: value` a line, with Megatron-LM's names.

Settings may be grouped under `architecture`, `layout`, `recipe` and `cluster`, or stand flat;
`model: llama-3-8b` starts from a preset of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptally.errors import InputError
from steptally.job.catalog.models import find_model, nearest_models
from steptally.job.coerce import shown
from steptally.job.readers.reading import Reading

GROUPS = ("architecture", "layout", "recipe", "cluster")


def read_job_mapping(content: Mapping[object, object], source: str, name: str) -> Reading:
    """The settings of a job file, flat. Raises `InputError` for a group that holds no settings."""
    values = _flat(content, source)
    stated = values.pop("name", name)
    if isinstance(stated, dict | list):
        raise InputError(f"{source}: name holds {what(stated)}: it must be a word.")
    name = str(stated)
    preset = values.pop("model", None)
    if preset is None:
        return Reading(values=values, name=name, names=(name,))
    model = find_model(str(preset))
    if model is None:
        near = ", ".join(nearest_models(str(preset))) or "see `steptally models`"
        raise InputError(
            f"{source}: model is {shown(preset)}, which is not in the catalogue: {near}. State "
            f"num_layers, hidden_size, … instead."
        )
    return Reading(values={**model.settings, **values}, name=name, names=(name,))


def _flat(content: Mapping[object, object], source: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in content.items():
        name = str(key).lstrip("-").replace("-", "_")
        inner: dict[str, object] = {name: value}
        if name in GROUPS:
            if not isinstance(value, dict):
                raise InputError(f"{source}: {name} holds {what(value)}: it must hold settings.")
            inner = _flat(value, source)
        for inner_name, inner_value in inner.items():
            if inner_name in values:
                raise InputError(f"{source} states {inner_name} twice: keep one.")
            values[inner_name] = inner_value
    return values


def what(content: object) -> str:
    """What a file holds, in a word or two."""
    if content is None:
        return "nothing"
    return {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}.get(
        type(content), f"a {type(content).__name__}"
    )
