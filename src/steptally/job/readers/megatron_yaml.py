"""YAML that configures Megatron: Megatron-LM's `--yaml-cfg`, Megatron-Bridge, argument tables.

Megatron-LM's has sections `language_model` and `model_parallel` beside flat arguments.
Megatron-Bridge's `ConfigContainer` has `model`, `train`, `ddp`, `optimizer`, …, in Megatron-Core's
names. Megatron-LM's own test recipes list flags under `MODEL_ARGS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from steptally.errors import InputError
from steptally.job.readers.command_line import is_megatron_flag, parse_arguments
from steptally.job.readers.reading import Reading, Unresolved
from steptally.job.readers.shell_values import Field
from steptally.job.readers.tokenizer import vocabulary

MEGATRON_SECTIONS = ("language_model", "model_parallel")
# Sections of a ConfigContainer that hold settings; later ones win, as Bridge applies them.
BRIDGE_SECTIONS = (
    "model",
    "tokenizer",
    "rng",
    "train",
    "optimizer",
    "ddp",
    "dist",
    "mixed_precision",
    "comm_overlap",
)
# Their keys that mean something else there than Megatron-LM's argument of that name does.
FOREIGN_KEYS = {"data_parallel_size", "context_parallel_size"}
HARMLESS_SECTIONS = (
    "checkpoint",
    "logger",
    "scheduler",
    "dataset",
    "validation",
    "profiling",
    "rerun_state_machine",
    "straggler",
    "nvrx_straggler",
    "ft",
    "inprocess_restart",
    "tensor_inspect",
    "env_vars",
    "ENV_VARS",
)
LAYOUT_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")


def is_megatron_yaml(content: Mapping[object, object]) -> bool:
    """Whether a mapping is one of the three forms."""
    sections = {key for key, value in content.items() if isinstance(value, dict)}
    bridge = "model" in sections and bool(sections & {"train", "ddp", "optimizer", "dataset"})
    return bool(sections & {*MEGATRON_SECTIONS, "MODEL_ARGS"}) or bridge or _targets(content)


def _targets(content: Mapping[object, object]) -> bool:
    return str(content.get("_target_", "")).endswith("ConfigContainer")


def read_megatron_yaml(
    content: Mapping[str, object], source: str, name: str, outside: Mapping[str, object]
) -> Reading:
    """Settings of a Megatron or Megatron-Bridge YAML; `outside` fills its `${VARIABLES}`."""
    notes: list[str] = []
    if isinstance(content.get("MODEL_ARGS"), dict):
        values = _from_flags(content, source, notes)
    elif any(section in content for section in MEGATRON_SECTIONS):
        values = _flat_sections(content)
        values.setdefault("group_query_attention", False)
    else:
        values = _from_bridge(content)
    texts = " ".join(value for value in values.values() if isinstance(value, str))
    consumed = frozenset(outside) & {match.group(1) for match in VARIABLE.finditer(texts)}
    values = {key: _filled(key, value, source, outside) for key, value in values.items()}
    assumed = vocabulary(values, notes)
    names = tuple(str(values[key]) for key in ("hf_model_id", "tokenizer_model") if key in values)
    return Reading(
        values=values,
        name=name,
        assumed=assumed,
        ignored={key: "a section" for key in HARMLESS_SECTIONS if key in content},
        notes=tuple(notes),
        names=(name, *names),
        consumed=consumed,
    )


def _from_flags(content: Mapping[str, object], source: str, notes: list[str]) -> dict[str, object]:
    """`MODEL_ARGS: {--num-layers: 12, --bf16: true}` is a command line."""
    words: list[Field] = []
    table = content["MODEL_ARGS"]
    for flag, value in table.items() if isinstance(table, dict) else ():
        if value is False or value is None or not is_megatron_flag(str(flag)):
            if value not in (False, None):
                notes.append(f"{flag} in MODEL_ARGS is not a flag of Megatron-LM.")
            continue
        texts = [] if value is True else [str(value)] if not isinstance(value, list) else value
        words += [Field(text=str(text), line=0) for text in (flag, *texts)]
    arguments = parse_arguments(words, source)
    notes += arguments.notes
    arguments.values.setdefault("group_query_attention", False)
    return arguments.values


def _flat_sections(content: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in content.items():
        inner = value if key in MEGATRON_SECTIONS and isinstance(value, dict) else {key: value}
        for name, item in inner.items():
            if item is not None or name not in values:
                values[str(name)] = _plain(item)
    return values


def _from_bridge(content: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for section in BRIDGE_SECTIONS:
        inner = content.get(section)
        if section == "mixed_precision" and isinstance(inner, str):
            inner = precision_recipe(inner)
        for key, item in inner.items() if isinstance(inner, dict) else ():
            foreign = section != "model" and key in FOREIGN_KEYS
            if item is not None and not str(key).startswith("_") and not foreign:
                values[str(key)] = _plain(item)
    layout = values.get("pipeline_model_parallel_layout")
    if isinstance(layout, list):
        values["pipeline_model_parallel_layout"] = layout_text(layout)
    dataset = content.get("dataset")
    if isinstance(dataset, dict):
        length = dataset.get("sequence_length", dataset.get("seq_length"))
        if length is not None:
            values["seq_length"] = length
    for key, item in content.items():
        if key not in (*BRIDGE_SECTIONS, *HARMLESS_SECTIONS) and not str(key).startswith("_"):
            values[str(key)] = item
    return values


def precision_recipe(name: str) -> dict[str, object]:
    """Megatron-Bridge's named precisions (training/mixed_precision.py), as their settings.

    >>> precision_recipe("bf16_with_mxfp8_mixed")["fp8"]
    'e4m3'
    """
    settings: dict[str, object] = {"bf16": "bf16" in name, "fp16": name.startswith("fp16")}
    scalings = {
        "fp8_delayed": ("hybrid", "delayed"),
        "fp8_current": ("hybrid", "tensorwise"),
        "mxfp8": ("e4m3", "mxfp8"),
        "fp8_subchannel": ("e4m3", "blockwise"),
    }
    for word, (number_format, recipe) in scalings.items():
        if word in name:
            settings |= {"fp8": number_format, "fp8_recipe": recipe}
    if "nvfp4" in name:
        settings["fp4"] = "e2m1"
    return settings


def layout_text(stages: list[object]) -> str:
    """A pipeline layout written as lists, in the letters of Megatron's command line.

    >>> layout_text([["embedding", "decoder"], ["decoder", "loss"]])
    'Et|tL'
    """
    letters = []
    for stage in stages:
        names = stage if isinstance(stage, list) else [stage]
        unknown = next((name for name in names if str(name) not in LAYOUT_LETTERS), None)
        if unknown is not None:
            raise InputError(
                f"pipeline_model_parallel_layout holds {str(unknown)[:40]!r}: its parts are "
                f"{', '.join(LAYOUT_LETTERS)}."
            )
        letters.append("".join(LAYOUT_LETTERS[str(name)] for name in names))
    return "|".join(letters)


def _plain(item: object) -> object:
    """`{_target_: torch.bfloat16, _call_: false}` is the object's name."""
    if isinstance(item, dict) and isinstance(item.get("_target_"), str):
        return item["_target_"]
    return item


def _filled(key: str, value: object, source: str, outside: Mapping[str, object]) -> object:
    """Replace `${NAME}` and `${NAME:-default}` in a text."""
    if not isinstance(value, str) or "${" not in value:
        return value
    lacking: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name in outside:
            return str(outside[name])
        if default is None:
            lacking.append(name)
        return default if default is not None else match.group(0)

    text = VARIABLE.sub(replace, value)
    if not lacking:
        return text
    return Unresolved(
        text=text,
        why=(
            f"{source}: {key} is {value[:60]}, which the file does not define: pass "
            f"--set {key}=VALUE, or --set {lacking[0]}=VALUE."
        ),
    )
