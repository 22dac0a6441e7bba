"""From a flat mapping of Megatron-LM's names to a complete, checked `Job`.

Readers only collect what a source says. Here, and only here, what it leaves open takes
Megatron-LM's own default, and the job remembers that it was assumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from steptally.errors import InputError
from steptally.job.architecture import Architecture
from steptally.job.cluster import Cluster
from steptally.job.coerce import coerce, settings
from steptally.job.job import Job
from steptally.job.layout import Layout
from steptally.job.recipe import Recipe
from steptally.job.rules import check

REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def job_from_settings(
    values: Mapping[str, object], *, name: str = "job", source: str = "settings"
) -> Job:
    """Resolve, complete and check a job.

    `values` maps Megatron-LM's names to what a source states, as text or typed. Raises
    `InputError` for a value of the wrong kind, a missing required one, or a job that Megatron
    could not run (`job.rules`).

    >>> job = job_from_settings({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...                          "seq_length": 32, "vocab_size": 128})
    >>> job.architecture.ffn_hidden_size
    256
    """
    known = settings()
    stated = {key: coerce(known[key], value) for key, value in values.items() if key in known}
    unknown = {key: value for key, value in values.items() if key not in known}
    # A stated `None` is what an argument dump prints for an option that was not given.
    stated = {key: value for key, value in stated.items() if value is not None}
    _require(stated, source)
    assumed: dict[str, str] = {}
    _complete_architecture(stated, assumed)
    _complete_layout(stated, assumed)
    job = Job(
        name=name,
        source=source,
        architecture=Architecture(**_part(Architecture, stated, assumed)),
        layout=Layout(**_part(Layout, stated, assumed)),
        recipe=Recipe(**_part(Recipe, stated, assumed)),
        cluster=Cluster(**_part(Cluster, stated, assumed)),
        assumed=assumed,
        unknown=unknown,
    )
    check(job)
    return job


def _require(stated: Mapping[str, object], source: str) -> None:
    missing = [name for name in REQUIRED if name not in stated]
    if "vocab_size" not in stated and "padded_vocab_size" not in stated:
        missing.append("vocab_size")
    if missing:
        raise InputError(
            f"{source} does not state {', '.join(missing)}: every account needs it. "
            f"Add it there, or pass --set {missing[0]}=VALUE."
        )
    for name, value in stated.items():
        if name in POSITIVE and isinstance(value, int) and value < 1:
            raise InputError(f"{name} is {value} in {source}: it must be at least 1.")


POSITIVE = frozenset(
    field.name
    for part in (Architecture, Layout, Cluster)
    for field in dataclasses.fields(part)
    if field.type in ("int", "int | None")
)


def _complete_architecture(stated: dict[str, Any], assumed: dict[str, str]) -> None:
    """Fill what Megatron-LM's validate_args derives from other arguments."""
    hidden_size, heads = stated["hidden_size"], stated["num_attention_heads"]

    def default(name: str, value: object, why: str) -> None:
        if name not in stated:
            stated[name] = value
            assumed[name] = f"{value} ({why})"

    if "ffn_hidden_size" not in stated:
        if stated.get("swiglu"):
            width, why = int((4 * hidden_size * 2 / 3) / 64) * 64, "⌊8h/3⌋ in units of 64: SwiGLU"
        else:
            width, why = 4 * hidden_size, "4 · hidden_size"
        default("ffn_hidden_size", width, f"Megatron's default, {why}")
    default("num_query_groups", heads, "Megatron's default: no grouped-query attention")
    if "kv_channels" not in stated:
        if hidden_size % heads:
            raise InputError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads} and "
                f"kv_channels is not stated: change one of them or state kv_channels."
            )
        default("kv_channels", hidden_size // heads, "hidden_size / num_attention_heads")
    if "vocab_size" not in stated:
        default("vocab_size", stated["padded_vocab_size"], "padded_vocab_size: no smaller known")
    if stated.get("num_experts"):
        default("moe_ffn_hidden_size", stated["ffn_hidden_size"], "Megatron: ffn_hidden_size")


def _complete_layout(stated: dict[str, Any], assumed: dict[str, str]) -> None:
    model_parallel = (
        stated.get("tensor_model_parallel_size", 1)
        * stated.get("pipeline_model_parallel_size", 1)
        * stated.get("context_parallel_size", 1)
    )
    if "world_size" not in stated:
        stated["world_size"] = model_parallel
        assumed["world_size"] = f"{model_parallel} (tp · pp · cp: one replica)"
    if "micro_batch_size" not in stated:
        stated["micro_batch_size"] = 1
        assumed["micro_batch_size"] = "1"
    if "global_batch_size" not in stated:
        replicas = max(1, stated["world_size"] // model_parallel)
        stated["global_batch_size"] = stated["micro_batch_size"] * replicas
        assumed["global_batch_size"] = (
            f"{stated['global_batch_size']} (Megatron's default: micro_batch_size · dp)"
        )
    if stated.get("num_experts") and "expert_tensor_parallel_size" not in stated:
        size = stated.get("tensor_model_parallel_size", 1)
        stated["expert_tensor_parallel_size"] = size
        assumed["expert_tensor_parallel_size"] = f"{size} (Megatron's default: tp)"


def _part(part: type, stated: Mapping[str, Any], assumed: dict[str, str]) -> dict[str, Any]:
    """The arguments of one part, noting each default that was taken for it."""
    arguments = {}
    for field in dataclasses.fields(part):
        if field.name in stated:
            arguments[field.name] = stated[field.name]
        elif field.default not in (None, False, dataclasses.MISSING):
            assumed.setdefault(field.name, f"{field.default} (Megatron's default)")
    return arguments
