"""Find out what a JOB argument is, by its content, and hand it to the reader of that form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from steptally.errors import InputError
from steptally.job.catalog.models import Model, find_model, nearest_models
from steptally.job.coerce import shown
from steptally.job.readers.command_line import is_megatron_flag
from steptally.job.readers.huggingface import is_config, read_config
from steptally.job.readers.job_file import read_job_mapping, what
from steptally.job.readers.megatron_args import read_arguments
from steptally.job.readers.megatron_log import read_log
from steptally.job.readers.megatron_yaml import is_megatron_yaml, read_megatron_yaml
from steptally.job.readers.reading import Reading

LARGEST_TEXT_BYTES = 4 << 20
HEAD_BYTES = 64 << 10
MOST_NODES = 200_000
MOST_FLAGS = 2000
FORMS = (
    "a Megatron-LM script or argument list, a Megatron log with its argument dump, a Megatron or "
    "Megatron-Bridge YAML, a Hugging Face config.json, a job file"
)
FLAG = re.compile(r"(?:^|[\s\"'(=])(--[A-Za-z][\w-]*)")
ITERATION = re.compile(rb"iteration +\d+/ *\d+")
MAGIC = {b"\x1f\x8b": "gzip", b"PK": "a zip archive", b"\x28\xb5\x2f\xfd": "zstandard"}


def read_source(argument: str, outside: Mapping[str, object]) -> Reading:
    """Read any form of a job; raises `InputError` with what was found where it is none of them.

    `outside` holds values for variables that a script or YAML takes from its environment.
    """
    try:
        return _read(argument, outside)
    except RecursionError as error:
        raise InputError(
            f"{argument[:100]} nests far deeper than any job does, or refers to itself without "
            f"end: JOB is {FORMS}."
        ) from error


def _read(argument: str, outside: Mapping[str, object]) -> Reading:
    path = Path(argument)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        exists = False
    if exists:
        return _read_path(path, outside)
    model = find_model(argument)
    if model is not None:
        return _preset(model)
    if sum(map(is_megatron_flag, argument.split())) > 1:
        return read_arguments(argument, "the argument list", "job", outside)
    raise _not_found(argument)


def _preset(model: Model) -> Reading:
    notes = (f"{model.name}: {model.note}",) if model.note else ()
    assumed = {"seq_length": f"{model.settings['seq_length']} (the preset's; --set seq_length=N)"}
    return Reading(
        values=model.settings,
        name=model.name,
        assumed=assumed,
        notes=notes,
        names=(model.name,),
    )


def _not_found(argument: str) -> InputError:
    shown = argument if len(argument) < 100 else f"{argument[:97]}…"
    near = ", ".join(nearest_models(argument))
    guess = f" Models of similar name: {near}." if near else ""
    return InputError(
        f"{shown!r} is neither a file nor a model that `steptally models` lists.{guess} JOB is the "
        f"path of {FORMS}, or a model's name."
    )


def _read_path(path: Path, outside: Mapping[str, object]) -> Reading:
    if path.is_dir():
        config = path / "config.json"
        if config.is_file():
            return _read_path(config, outside)
        raise InputError(f"{path} is a folder: JOB is a file: {FORMS}.")
    try:
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device: JOB is a file, read more than once.")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        _refuse_binary(path, head)
        return _read_text(path, size, head, outside)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _refuse_binary(path: Path, head: bytes) -> None:
    if not head.strip():
        raise InputError(f"{path} is empty: JOB is {FORMS}.")
    packed = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    if packed:
        raise InputError(f"{path} is packed ({packed}): unpack it first.")
    if b"\0" in head:
        raise InputError(f"{path} is a binary file: JOB is {FORMS}.")


def _read_text(path: Path, size: int, head: bytes, outside: Mapping[str, object]) -> Reading:
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    if head.lstrip()[:1] != b"{":
        log = read_log(path, name)
        if log is not None:
            return log
    if ITERATION.search(head) and not head.lstrip().startswith(b"{"):
        raise InputError(
            f"{path} is a log without Megatron's argument dump (lines `num_layers ....... 32`): "
            f"give the job itself, as a script, a YAML or a model's name."
        )
    if size > LARGEST_TEXT_BYTES:
        raise InputError(
            f"{path} is {size >> 20} MiB and holds no argument dump (lines `num_layers ....... "
            f"32`): no script or configuration is that large. JOB is {FORMS}."
        )
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return _read_small(text, path, name, outside)


def _read_small(text: str, path: Path, name: str, outside: Mapping[str, object]) -> Reading:
    source = str(path)
    if text.lstrip().startswith("{"):
        content = _json(text, source)
        if content is not None:
            return _read_mapping(content, source, name, outside)
    flags = 0
    if not re.search(r"^MODEL_ARGS:", text, re.MULTILINE):
        found = islice(FLAG.finditer(text), MOST_FLAGS)
        flags = sum(is_megatron_flag(match.group(1)) for match in found)
    if flags > 1:
        return read_arguments(text, source, name, outside)
    content = _yaml(text, source)
    if flags and not isinstance(content, dict):
        return read_arguments(text, source, name, outside)
    return _read_mapping(content, source, name, outside)


def _read_mapping(
    content: object, source: str, name: str, outside: Mapping[str, object]
) -> Reading:
    if not isinstance(content, dict):
        raise InputError(f"{source} holds {what(content)}: JOB is {FORMS}.")
    _refuse_a_bomb(content, source)
    content = _job_inside(content)
    if is_config(content):
        return read_config(content, source, name)
    if is_megatron_yaml(content):
        return read_megatron_yaml(content, source, name, outside)
    return read_job_mapping(content, source, name)


def _job_inside(content: dict[Any, Any]) -> dict[Any, Any]:
    """The settings of a run's manifest, or of a tally that steptally wrote."""
    if str(content.get("format", "")).startswith("steptally-run/"):
        inner = content.get("settings")
        return inner if isinstance(inner, dict) else content
    job = content.get("job")
    if str(content.get("schema", "")).startswith("steptally/") and isinstance(job, dict):
        groups = ("name", "architecture", "layout", "recipe", "cluster")
        inner = {key: job[key] for key in groups if key in job}
        layout = inner.get("layout")
        if isinstance(layout, dict):  # derived values, not settings
            kept = layout.items()
            inner["layout"] = {k: v for k, v in kept if k not in ("num_microbatches",)}
        return inner
    return content


def _json(text: str, source: str) -> object | None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_twice((key for key, _ in pairs), source)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _refuse_twice(keys: Iterable[object], source: str) -> None:
    """YAML and JSON parsers let the last of two equal keys win without a word."""
    seen: set[object] = set()
    for key in keys:
        if key in seen:
            raise InputError(f"{source} states {shown(key)} twice: keep one.")
        seen.add(key)


def _yaml(text: str, source: str) -> object:
    import yaml  # most jobs need no YAML, and every verb waits for this module

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Once(loader):  # type: ignore[misc]
        """The safe loader, which refuses a key that one mapping holds twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = (key for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            _refuse_twice((key.value for key in keys if key.value != "<<"), source)
            constructed: dict[Any, Any] = super().construct_mapping(node, deep)
            return constructed

    try:
        return yaml.load(text, Loader=Once)
    except (
        yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
        RecursionError,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{source} is not a form of a job that steptally reads ({FORMS}); read as YAML: "
            f"{reason}."
        ) from error


def _refuse_a_bomb(content: object, source: str) -> None:
    """YAML aliases can make a small file mean billions of values."""
    pending, seen = [content], 0
    while pending:
        item = pending.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InputError(f"{source} expands to over {MOST_NODES} values: no job has so many.")
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
