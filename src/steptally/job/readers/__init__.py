"""Anything that describes a job, read into a `Job`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steptally.errors import InputError, did_you_mean
from steptally.job.catalog.options import effect_of, options_by_name
from steptally.job.coerce import settings
from steptally.job.job import Job
from steptally.job.known_model import differences
from steptally.job.names import canonical, parse_overrides
from steptally.job.readers.reading import Reading, Unresolved
from steptally.job.readers.source import read_source
from steptally.job.resolve import job_from_settings

# An override also unsays what would otherwise contradict it.
UNSAYS: Mapping[str, tuple[str, ...]] = {
    "num_query_groups": ("group_query_attention",),
    "vocab_size": ("padded_vocab_size",),
    "virtual_pipeline_model_parallel_size": (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
    ),
    "num_layers_per_virtual_pipeline_stage": (
        "virtual_pipeline_model_parallel_size",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
    ),
    "num_virtual_stages_per_pipeline_rank": (
        "virtual_pipeline_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "pipeline_model_parallel_layout",
    ),
    "hybrid_override_pattern": ("hybrid_layer_pattern", "num_layers"),
    "hybrid_layer_pattern": ("hybrid_override_pattern", "num_layers"),
    "world_size": ("nodes", "data_parallel_size"),
    "devices_per_node": ("nodes",),
    "device": ("link_domain_size", "intra_node_bandwidth_bytes_per_s"),
    "bf16": ("fp16", "params_dtype"),
    "fp16": ("bf16", "params_dtype"),
    "fp8": ("fp4",),
    "fp4": ("fp8",),
}

__all__ = ["parse_overrides", "read_job"]


def read_job(argument: str, overrides: Sequence[str] = ()) -> Job:
    """Read a JOB argument, whatever form it has (docs/job.md lists them).

    `overrides` are `name=value` texts (the command line's `--set`), which win over the source; the
    name of a variable that a script or YAML uses fills that variable. Raises `InputError` where
    nothing is found or the job cannot be.

    >>> read_job("llama-3-8b", ["seq_length=4096"]).layout.seq_length
    4096
    """
    stated = parse_overrides(list(overrides))
    reading = read_source(argument, stated)
    overriding = canonical(
        {name: value for name, value in stated.items() if name not in reading.consumed}
    )
    _refuse_unknown(overriding)
    values = _merged(reading, overriding)
    assumed = {key: why for key, why in reading.assumed.items() if key not in overriding}
    job = job_from_settings(
        values,
        name=reading.name or "job",
        source=argument[:200],
        assumed=assumed,
        ignored=reading.ignored,
        notes=reading.notes,
    )
    return differences(job, reading.names)


def _refuse_unknown(overriding: Mapping[str, object]) -> None:
    """A name that neither a job nor Megatron has is a typing error, and would change nothing."""
    known = [*settings(), *options_by_name()]
    for name in overriding:
        if name not in settings() and name not in options_by_name():
            raise InputError(
                f"--set {name[:60]} names no setting{did_you_mean(name, known)}, and the source "
                f"uses no variable of that name: names are those of Megatron-LM's command line."
            )


def _merged(reading: Reading, overriding: Mapping[str, object]) -> dict[str, object]:
    """The source's settings under the overrides, with nothing that was left to the outside."""
    values = canonical(reading.values)
    for name in overriding:
        for other in UNSAYS.get(name, ()):
            if other not in overriding:
                values.pop(other, None)
    values.update(overriding)
    for name, value in values.items():
        parts = value if isinstance(value, list) else [value]
        open_part = next((part for part in parts if isinstance(part, Unresolved)), None)
        if open_part is None:
            continue
        if effect_of(name) in ("setting", "derived"):
            raise InputError(open_part.why)
        values[name] = str(open_part)
    return values
