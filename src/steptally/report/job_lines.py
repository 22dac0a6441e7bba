"""The job in a few lines, in Megatron's own names; whatever a tally leaves out is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptally.report.quantity import printable
from steptally.tally import Tally

# Parallel sizes and the short names that the field gives them; a size of 1 is not shown, but for
# the three that every job is described by.
PARALLEL_SIZES = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "data_parallel_size": "DP",
    "virtual_pipeline_model_parallel_size": "VPP",
    "context_parallel_size": "CP",
    "expert_model_parallel_size": "EP",
}
ALWAYS_SHOWN = ("TP", "PP", "DP")
# Recipe settings that are worth a word when they are set.
SWITCHES = (
    "fp8",
    "fp4",
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
    "moe_grouped_gemm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the job; `why` says where an assumed value comes from, else it is empty."""

    part: str
    name: str
    value: str
    why: str


def job_name(tally: Tally) -> str:
    """What the job is called."""
    return printable(str(tally.job.get("name") or "unnamed job"))


def job_lines(tally: Tally) -> list[tuple[str, str]]:
    """(heading, text) pairs: model, layout, batch, recipe, where it ran, what was assumed."""
    lines = [
        ("model", _model(tally.job)),
        ("layout", _layout(_part(tally.job, "layout"))),
        ("batch", _batch(_part(tally.job, "layout"))),
        ("recipe", _recipe(tally.job)),
        ("device", _named(_part(tally.job, "cluster"), "device", "")),
        ("source", printable(str(tally.job.get("source") or ""))),
        ("assumed", _assumed(tally.job)),
        ("unknown", printable(", ".join(_listed(tally.job, "unknown")))),
    ]
    return [(heading, text) for heading, text in lines if text]


def settings(tally: Tally) -> list[Setting]:
    """Every setting of the job, flat, with the reason of those that were assumed."""
    reasons = dict(_name_and_reason(entry) for entry in _listed(tally.job, "assumed"))
    return [
        Setting(
            part=printable(part),
            name=printable(str(name)),
            value=_value(value),
            why=printable(reasons.get(str(name), "")),
        )
        for part in ("architecture", "layout", "recipe", "cluster")
        for name, value in _part(tally.job, part).items()
    ]


def _model(job: Mapping[str, Any]) -> str:
    architecture = _part(job, "architecture")
    heads = _named(architecture, "num_attention_heads", "heads")
    if heads and architecture.get("num_query_groups") != architecture["num_attention_heads"]:
        heads += f" in {_value(architecture.get('num_query_groups'))} query groups"
    ffn = _named(architecture, "ffn_hidden_size", "FFN", before=True)
    if ffn and architecture.get("swiglu"):
        ffn += " (SwiGLU)"
    experts = _named(architecture, "num_experts", "experts")
    if experts:
        experts += f", top {_value(architecture.get('moe_router_topk'))}"
    return _joined(
        _named(architecture, "num_layers", "layers"),
        _named(architecture, "hidden_size", "hidden", before=True),
        heads,
        ffn,
        experts,
        _named(job, "padded_vocab_size", "padded vocabulary", before=True),
        _named(architecture, "position_embedding_type", "positions", before=True),
    )


def _layout(layout: Mapping[str, Any]) -> str:
    sizes = [
        f"{short} {_value(layout[name])}"
        for name, short in PARALLEL_SIZES.items()
        if layout.get(name) and (layout[name] != 1 or short in ALWAYS_SHOWN)
    ]
    ranks = _named(layout, "world_size", "ranks")
    split = " × ".join(sizes)
    return _joined(
        f"{ranks} = {split}" if ranks and split else ranks or split,
        "sequence parallel" if layout.get("sequence_parallel") else "",
        _named(layout, "recompute_granularity", "recompute", before=True),
    )


def _batch(layout: Mapping[str, Any]) -> str:
    return _joined(
        _named(layout, "global_batch_size", "sequences a step"),
        _named(layout, "micro_batch_size", "micro-batch", before=True),
        _named(layout, "num_microbatches", "micro-batches a pipeline"),
        _named(layout, "seq_length", "tokens a sequence"),
    )


def _recipe(job: Mapping[str, Any]) -> str:
    recipe = _part(job, "recipe")
    if not recipe:
        return ""
    precision = "bf16" if recipe.get("bf16") else "fp16" if recipe.get("fp16") else "fp32"
    switched_on = [
        name if recipe[name] is True else f"{name} {_value(recipe[name])}"
        for name in SWITCHES
        if recipe.get(name)
    ]
    return _joined(
        precision,
        _named(recipe, "optimizer", "", before=True),
        _named(recipe, "attention_backend", "attention_backend", before=True),
        *switched_on,
    )


def _assumed(job: Mapping[str, Any]) -> str:
    """Derived settings with their values; Megatron's plain defaults as a count."""
    entries = _listed(job, "assumed")
    plain = [entry for entry in entries if entry.endswith("(Megatron's default)")]
    derived = [_name_and_reason(entry) for entry in entries if entry not in plain]
    words = [f"{name} = {reason.partition(' (')[0]}" for name, reason in derived]
    if plain:
        words.append(f"{len(plain)} at Megatron's own defaults")
    return printable(" · ".join(words))


def _name_and_reason(entry: str) -> tuple[str, str]:
    name, _, reason = entry.partition(": ")
    return name, reason


def _listed(job: Mapping[str, Any], name: str) -> list[str]:
    entries = job.get(name)
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        return []
    return [str(entry) for entry in entries]


def _part(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = job.get(name)
    return part if isinstance(part, Mapping) else {}


def _named(values: Mapping[str, Any], name: str, words: str, *, before: bool = False) -> str:
    """`4 layers`, or with `before` `hidden 256`; empty where the value is not there."""
    if values.get(name) is None:
        return ""
    value = _value(values[name])
    if before:
        return f"{words} {value}".strip()
    return f"{value} {_singular(words) if values[name] == 1 else words}".strip()


def _singular(words: str) -> str:
    """`ranks` of one is `rank`; only the first word counts something."""
    first, space, rest = words.partition(" ")
    one = first.removesuffix("es") if first.endswith("ches") else first.removesuffix("s")
    return f"{one}{space}{rest}"


def _value(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    return printable(str(value))


def _joined(*words: str) -> str:
    return " · ".join(word for word in words if word)
