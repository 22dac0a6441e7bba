"""From a flat mapping of Megatron-LM's names to a complete, checked `Job`.

Readers only collect what a source says. Here, and only here, what it leaves open takes
Megatron-LM's own default, and the job remembers that it was assumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from math import lcm
from typing import Any

from steptally.errors import InputError, did_you_mean
from steptally.job.architecture import Architecture
from steptally.job.catalog.devices import find_device
from steptally.job.catalog.options import effect_of, is_default
from steptally.job.cluster import Cluster
from steptally.job.coerce import coerce, settings
from steptally.job.derive import derive
from steptally.job.job import Job
from steptally.job.layout import Layout
from steptally.job.recipe import Recipe
from steptally.job.rules import check

USUAL_DEVICES_PER_NODE = 8
REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def job_from_settings(
    values: Mapping[str, object],
    *,
    name: str = "job",
    source: str = "settings",
    assumed: Mapping[str, str] | None = None,
    ignored: Mapping[str, object] | None = None,
    notes: Sequence[str] = (),
) -> Job:
    """Resolve, complete and check a job.

    `values` maps names of Megatron-LM (or Megatron-Core) to what a source states, as text or
    typed; `assumed`, `ignored` and `notes` are what its reader already has to say. Raises
    `InputError` for a value of the wrong kind, a missing required one, or a job that Megatron
    could not run (`job.rules`).

    >>> job = job_from_settings({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...                          "seq_length": 32, "vocab_size": 128})
    >>> job.architecture.ffn_hidden_size
    256
    """
    said = list(notes)
    derived = derive(values, said)
    known = settings()
    stated = {key: coerce(known[key], value) for key, value in derived.items() if key in known}
    stated = {key: value for key, value in stated.items() if value is not None}
    unknown, harmless = _sort_out({key: v for key, v in derived.items() if key not in known})
    _require(stated, source, unknown)
    filled = dict(assumed or {})
    _complete_architecture(stated, filled)
    _complete_layout(stated, filled)
    _complete_cluster(stated, filled)
    job = Job(
        name=name,
        source=source,
        architecture=Architecture(**_part(Architecture, stated, filled)),
        layout=Layout(**_part(Layout, stated, filled)),
        recipe=Recipe(**_part(Recipe, stated, filled)),
        cluster=Cluster(**_part(Cluster, stated, filled)),
        assumed=filled,
        unknown=unknown,
        ignored={**harmless, **(ignored or {})},
        notes=tuple(said),
    )
    check(job)
    return job


def _sort_out(others: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """What no account knows: unknown where it may matter, ignored where it does not.

    An argument dump prints every option; those at Megatron-LM's own default change nothing.
    """
    unknown: dict[str, object] = {}
    ignored: dict[str, object] = {}
    for name, value in others.items():
        harmless = effect_of(name) == "none" or is_default(name, value)
        (ignored if harmless else unknown)[name] = value
    return unknown, ignored


def _require(stated: Mapping[str, object], source: str, unknown: Mapping[str, object]) -> None:
    missing = [name for name in REQUIRED if name not in stated]
    if "vocab_size" not in stated and "padded_vocab_size" not in stated:
        missing.append("vocab_size")
    if missing:
        guess = next(filter(None, (did_you_mean(other, missing) for other in unknown)), "")
        raise InputError(
            f"{source} does not state {', '.join(missing)}{guess}: every account needs it. "
            f"Add it there, or pass --set {missing[0]}=VALUE."
        )
    for name, value in stated.items():
        too_small = isinstance(value, int) and not isinstance(value, bool) and value < 1
        if name in _positive() and too_small:
            raise InputError(f"{name} is {value} in {source}: it must be at least 1.")
        if name.endswith("_per_s") and isinstance(value, float) and value <= 0:
            raise InputError(f"{name} is {value:g} in {source}: it must be more than 0 bytes/s.")


@cache
def _positive() -> frozenset[str]:
    """Settings that count something: sizes of the model, the layout and the cluster."""
    parts = (Architecture, Layout, Cluster)
    return frozenset(
        setting.name
        for setting in settings().values()
        if setting.part in parts and int in setting.types
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
            width, why = 8 * hidden_size // 192 * 64, "⌊8h/3⌋ in units of 64: SwiGLU"
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
    if stated.get("num_experts") is not None:
        default("moe_ffn_hidden_size", stated["ffn_hidden_size"], "Megatron: ffn_hidden_size")


def _complete_layout(stated: dict[str, Any], assumed: dict[str, str]) -> None:
    tensor = stated.get("tensor_model_parallel_size", 1)
    pipeline = stated.get("pipeline_model_parallel_size", 1)
    model_parallel = tensor * pipeline * stated.get("context_parallel_size", 1)
    if "expert_tensor_parallel_size" not in stated:
        if stated.get("num_experts") is not None:
            assumed["expert_tensor_parallel_size"] = f"{tensor} (Megatron's default: tp)"
            stated["expert_tensor_parallel_size"] = tensor
        elif stated.get("use_tp_pp_dp_mapping"):  # orders ranks by it, experts or none
            stated["expert_tensor_parallel_size"] = tensor
    if "world_size" not in stated:
        expert_parallel = stated.get("expert_model_parallel_size", 1) * pipeline
        expert_parallel *= stated.get("expert_tensor_parallel_size", 1)
        stated["world_size"] = lcm(model_parallel, expert_parallel)
        assumed["world_size"] = f"{stated['world_size']} (the smallest that tp, pp, cp, ep need)"
    if "micro_batch_size" not in stated:
        stated["micro_batch_size"] = 1
        assumed["micro_batch_size"] = "1"
    if "global_batch_size" not in stated:
        replicas = max(1, stated["world_size"] // model_parallel)
        stated["global_batch_size"] = stated["micro_batch_size"] * replicas
        assumed["global_batch_size"] = (
            f"{stated['global_batch_size']} (Megatron's default: micro_batch_size · dp)"
        )


def _complete_cluster(stated: dict[str, Any], assumed: dict[str, str]) -> None:
    """Take the node and its links from the device, where the catalogue has it."""
    if stated.get("device") and not stated["device"].lower().startswith("cpu"):
        device = find_device(stated["device"])
        if not stated["device"].lower().endswith(".toml"):  # a device file stays a path
            stated["device"] = device.name
        from_device = {
            "devices_per_node": device.devices_per_node,
            "link_domain_size": device.link_domain_size,
            "intra_node_bandwidth_bytes_per_s": device.link_bandwidth_bytes_per_s,
        }
        for name, value in from_device.items():
            if name not in stated and value is not None:
                stated[name] = value
                assumed[name] = f"{value:g} ({device.name}, {device.link})"
    if "devices_per_node" not in stated:
        stated["devices_per_node"] = USUAL_DEVICES_PER_NODE
        assumed["devices_per_node"] = f"{USUAL_DEVICES_PER_NODE} (the usual node)"
    if "nodes" not in stated:
        stated["nodes"] = -(-stated["world_size"] // stated["devices_per_node"])


def _part(part: type, stated: Mapping[str, Any], assumed: dict[str, str]) -> dict[str, Any]:
    """The arguments of one part, noting each default that was taken for it."""
    arguments = {}
    for field in dataclasses.fields(part):
        if field.name in stated:
            arguments[field.name] = stated[field.name]
        elif field.default not in (None, False, dataclasses.MISSING):
            assumed.setdefault(field.name, f"{field.default} (Megatron's default)")
    return arguments
