"""Settings that a job merely assumed, changed to what can run here.

Megatron-LM's defaults assume Transformer Engine and Apex on CUDA. Where they are missing, an
assumed default gives way and the job says so; a stated setting never does (`run.preflight` refuses
it instead). Imports no torch, so that a launcher can adapt a job before any process starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from steptally.engine.availability import EngineParts
from steptally.engine.stages import virtual_stages
from steptally.errors import MissingPartError
from steptally.job import Job

Change = tuple[str, Any, str]  # setting, value, why


def adapt(job: Job, parts: EngineParts) -> Job:
    """The job as it will run with these parts; what changed is explained in `assumed`.

    >>> parts = EngineParts(torch="2.13.0", megatron_core="0.16.1")
    >>> adapt(job, parts).recipe.transformer_impl                      # doctest: +SKIP
    'local'
    """
    for changes in (_layers, _fusions, _activation_fusions, _as_megatron_lm_derives):
        job = _with(job, changes(job, parts))
    return job


def uses_transformer_engine(job: Job, parts: EngineParts) -> bool:
    """Whether layers would be Transformer Engine's, which needs CUDA."""
    installed = parts.transformer_engine is not None and parts.cuda
    return installed and job.recipe.transformer_impl == "transformer_engine"


def require_layers(job: Job, parts: EngineParts) -> None:
    """Raise `MissingPartError` where Transformer Engine's layers are stated and cannot be had."""
    stated = "transformer_impl" not in job.assumed
    wanted = stated and job.recipe.transformer_impl == "transformer_engine"
    if not wanted or uses_transformer_engine(job, parts):
        return
    lack = "is not installed" if parts.cuda else "needs CUDA, which this machine does not have"
    raise MissingPartError(
        f"{job.source} states transformer_impl transformer_engine, but Transformer Engine {lack}: "
        f"install it where there is a GPU (pip install 'transformer_engine[pytorch]'), or use "
        f"Megatron-Core's own layers with --set transformer_impl=local."
    )


def _layers(job: Job, parts: EngineParts) -> Iterator[Change]:
    """Without Transformer Engine, layers are Megatron-Core's own and their attention is unfused."""
    if "transformer_impl" in job.assumed and not uses_transformer_engine(job, parts):
        yield "transformer_impl", "local", "Transformer Engine is not installed"
        job = _with(job, [("transformer_impl", "local", "")])
    if job.recipe.transformer_impl == "local" and job.recipe.attention_backend == "auto":
        yield "attention_backend", "unfused", "what the local implementation of layers does"


def _fusions(job: Job, parts: EngineParts) -> Iterator[Change]:
    """Fusions that are on by default and come from Apex or Transformer Engine."""
    if parts.apex is None:
        for name in ("masked_softmax_fusion", "gradient_accumulation_fusion"):
            if name in job.assumed:
                yield name, False, "Apex, which carries the kernel, is not installed"
    if "apply_rope_fusion" in job.assumed and not uses_transformer_engine(job, parts):
        yield "apply_rope_fusion", False, "Transformer Engine carries the kernel"


def _activation_fusions(job: Job, parts: EngineParts) -> Iterator[Change]:
    """Fusions of bias and activation for which megatron-core 0.16.1 has no kernel."""
    architecture = job.architecture
    names = [name for name in ("bias_gelu_fusion", "bias_swiglu_fusion") if name in job.assumed]
    if architecture.num_experts is not None and architecture.add_bias_linear:
        for name in names:
            yield name, False, "experts with biases have no such kernel"
    elif "bias_gelu_fusion" in names and (architecture.squared_relu or architecture.quick_geglu):
        yield "bias_gelu_fusion", False, "this activation has no such kernel"


def _as_megatron_lm_derives(job: Job, parts: EngineParts) -> Iterator[Change]:
    """What Megatron-LM's `validate_args` sets from other arguments."""
    architecture, layout, recipe = job.architecture, job.layout, job.recipe
    if architecture.position_embedding_type != "rope" and recipe.apply_rope_fusion:
        yield "apply_rope_fusion", False, "Megatron-LM: only rope is rotated"
    if recipe.bias_gelu_fusion and not architecture.add_bias_linear:
        yield "bias_gelu_fusion", False, "Megatron-LM: there is no bias"
    if recipe.overlap_p2p_communication and virtual_stages(layout) is None:
        yield "overlap_p2p_communication", False, "Megatron-LM: only the interleaved schedule does"


def _with(job: Job, changes: Iterator[Change] | list[Change]) -> Job:
    """The job with recipe settings replaced, each with its reason in `assumed`."""
    listed = [change for change in changes if getattr(job.recipe, change[0]) != change[1]]
    return dataclasses.replace(
        job,
        recipe=dataclasses.replace(job.recipe, **{name: value for name, value, _ in listed}),
        assumed={**job.assumed, **{name: f"{value} ({why})" for name, value, why in listed}},
    )
