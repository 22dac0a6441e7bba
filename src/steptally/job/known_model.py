"""Tell a user whose model is named like a published one but is built otherwise.

The usual cause: a flag that makes another one count is missing, as --group-query-attention is in
many Llama 3 scripts. Only settings are compared here; `predict` has the parameter counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptally.job.architecture import Architecture
from steptally.job.catalog.models import Model, find_named
from steptally.job.job import Job
from steptally.job.resolve import job_from_settings

# What decides the number of parameters.
SHAPE = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "swiglu",
    "quick_geglu",
    "geglu",
    "squared_relu",
    "multi_latent_attention",
    "q_lora_rank",
    "kv_lora_rank",
    "num_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "untie_embeddings_and_output_weights",
)


def known_model(names: Sequence[str]) -> Model | None:
    """The catalogue's model that the first telling name means: file, run, then paths."""
    return next((model for model in map(find_named, names) if model is not None), None)


def differences(job: Job, names: Sequence[str]) -> Job:
    """The job with a note where it is named like a published model and differs from it."""
    model = known_model(names[:2]) or _same_size(job, names[2:])
    if model is None:
        return job
    ours, published = job.architecture, job_from_settings(model.settings).architecture
    found = [
        f"{name} {getattr(ours, name)} instead of {getattr(published, name)}"
        for name in _shape_of(published)
        if getattr(ours, name) != getattr(published, name)
    ]
    if _expert_layers(ours) != _expert_layers(published):
        found.append("other layers with experts")
    note = (
        f"It is named like {model.name} ({model.parameters / 1e9:.4g} B parameters, "
        f"{model.source}) but is built otherwise: {'; '.join(found)}."
    )
    notes = (*job.notes, note) if found else job.notes
    return replace(job, named_like=model.name, notes=notes)


def _shape_of(architecture: Architecture) -> tuple[str, ...]:
    """The settings that decide the size of a model of this kind."""
    unused = set()
    if architecture.multi_latent_attention:
        unused = {"num_query_groups", "kv_channels"}
    if all(_expert_layers(architecture)) and architecture.num_experts:
        unused.add("ffn_hidden_size")
    return tuple(name for name in SHAPE if name not in unused)


def _expert_layers(architecture: Architecture) -> tuple[bool, ...]:
    if architecture.num_experts is None or architecture.hybrid_override_pattern is not None:
        return ()
    frequency = architecture.moe_layer_freq
    if isinstance(frequency, int):
        return tuple(layer % frequency == 0 for layer in range(architecture.num_layers))
    return tuple(map(bool, frequency))


def _same_size(job: Job, names: Sequence[str]) -> Model | None:
    """A model that a path names counts only where depth and width agree: tokenizers are shared."""
    model = known_model(names)
    if model is None:
        return None
    shape = job.architecture
    same = model.settings.get("num_layers") == shape.num_layers
    return model if same and model.settings.get("hidden_size") == shape.hidden_size else None
