"""FLOPs of many layouts at once: the same formulas over float64 arrays, one entry a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steptally.job import Job
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.count import Count
from steptally.predict.flops import StepFlops, flops_per_step
from steptally.predict.layers import LayerKind
from steptally.predict.model_terms import layer_terms
from steptally.predict.terms import batch_of

# What a layout may vary without changing which formulas apply.
VARIABLE = ("tensor_model_parallel_size", "sequence_parallel", "global_batch_size")


def layouts_flops(
    job: Job,
    layouts: Mapping[str, Any],
    rerun_layers: Mapping[LayerKind, Any] | None = None,
    convention: Convention = EXACT_CAUSAL,
) -> StepFlops:
    """Useful and executed FLOPs of a step for each layout, as float64 arrays.

    `layouts` maps names in `VARIABLE` to arrays of one length; everything else is the job's.
    `rerun_layers` says how many decoder layers of each kind full recomputation runs again in each
    layout, on top of the job's own recomputation. Arrays are exact up to 2⁵³ and correct to 16
    digits above. Raises `ValueError` for another name.

    >>> import numpy
    >>> from steptally.job import read_job
    >>> job = read_job("llama-3-8b")
    >>> counted = layouts_flops(job, {"tensor_model_parallel_size": numpy.array([1.0, 8.0])})
    >>> counted.useful.tolist() == [flops_per_step(job).useful] * 2
    True
    """
    unknown = set(layouts) - set(VARIABLE)
    if unknown:
        raise ValueError(f"layouts vary in {', '.join(VARIABLE)} only, got {sorted(unknown)}")
    varied = replace(job, layout=replace(job.layout, **layouts))
    useful, executed = flops_per_step(varied, convention)
    for kind, layers in (rerun_layers or {}).items():
        executed = executed + layers * _forward(varied, kind, convention)
    return StepFlops(useful, executed)


def _forward(job: Job, kind: LayerKind, convention: Convention) -> Count:
    batch = batch_of(job.layout.global_batch_size, job.layout.seq_length)
    return sum(term.executed for term in layer_terms(job, kind, batch, convention))
