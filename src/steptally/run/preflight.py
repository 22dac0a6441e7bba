"""What a run refuses before any process starts: one sentence each, with what to do.

Three kinds of refusal: settings that would be ignored here (`run.ignored`), combinations that
Megatron-LM's own argument checks refuse and Megatron-Core alone does not (`run.combinations`), and
a machine or environment that does not fit, below. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass

from steptally.engine.adapt import adapt, require_layers
from steptally.engine.availability import EngineParts, require_engine
from steptally.errors import InputError, did_you_mean
from steptally.job import Job, job_from_settings
from steptally.job.catalog.options import is_default
from steptally.run.combinations import check_combinations
from steptally.run.ignored import check_nothing_is_ignored

# Resident memory of one CPU worker that has imported torch and megatron-core, measured with
# torch 2.13.0 and megatron-core 0.16.1 on Linux x86-64.
WORKER_BASE_BYTES = 440 * 2**20

# What a job that leaves them open takes from its number of ranks.
FOLLOW_THE_WORLD = ("world_size", "global_batch_size", "nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The job as it will run, and what the user should know about it first."""

    job: Job
    warnings: tuple[str, ...]


def prepare_run(
    job: Job, *, process_count: int, parts: EngineParts, memory_bytes: int | None = None
) -> Preparation:
    """Check and adapt a job for `process_count` ranks on this machine.

    `memory_bytes` is the memory that the ranks may share (default: what the machine has). Raises
    `InputError` for a job that would not do what it says, `MissingPartError` for a missing part.
    """
    require_engine(parts)
    job = fit_to_processes(job, process_count)
    _refuse_unknown(job)
    require_layers(job, parts)
    job = adapt(job, parts)
    check_nothing_is_ignored(job, parts)
    check_combinations(job, parts)
    warnings = (*job.notes, *_warnings(job, parts, memory_bytes))
    return Preparation(job=job, warnings=warnings)


def fit_to_processes(job: Job, process_count: int) -> Job:
    """The job on `process_count` ranks, where it does not state its world size otherwise."""
    layout = job.layout
    if layout.world_size == process_count:
        return job
    if "world_size" in job.assumed:
        return with_world_size(job, process_count)
    raise InputError(
        f"{job.source} states world_size {layout.world_size} (tp "
        f"{layout.tensor_model_parallel_size} · pp {layout.pipeline_model_parallel_size} · cp "
        f"{layout.context_parallel_size} · dp {layout.data_parallel_size}), but {process_count} "
        f"processes were asked for: use --nproc {layout.world_size}, or --set "
        f"world_size={process_count}."
    )


def with_world_size(job: Job, world_size: int) -> Job:
    """The job resolved anew, with what was assumed from its world size assumed again."""
    again = {name for name in FOLLOW_THE_WORLD if name in job.assumed}
    stated = {name: value for name, value in job.settings().items() if name not in again}
    resolved = job_from_settings(
        {**stated, **job.unknown, "world_size": world_size},
        name=job.name,
        source=job.source,
        assumed={name: why for name, why in job.assumed.items() if name not in again},
        ignored=job.ignored,
        notes=job.notes,
    )
    return dataclasses.replace(resolved, named_like=job.named_like)


def _refuse_unknown(job: Job) -> None:
    if not job.unknown:
        return
    known = job.settings()
    names = [f"{name}{did_you_mean(name, known)}" for name in job.unknown]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    raise InputError(
        f"{job.source} states {', '.join(names[:5])}{more}, which steptally does not know and a "
        f"run would ignore: correct the name, or remove it."
    )


def _warnings(job: Job, parts: EngineParts, memory_bytes: int | None) -> Iterator[str]:
    left_out = [name for name, value in job.ignored.items() if not is_default(name, value)]
    if left_out:
        more = f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""
        yield (
            f"{job.source} states {', '.join(left_out[:8])}{more}: no account depends on them, and "
            f"this run does without them."
        )
    if parts.cuda:
        return
    available = machine_memory_bytes() if memory_bytes is None else memory_bytes
    ranks = job.layout.world_size
    state = training_state_bytes(job)
    if state > available:
        raise InputError(
            f"weights, gradients and optimizer state of {ranks} ranks are at least "
            f"{state / 2**30:.1f} GiB, and this machine has {available / 2**30:.1f} GiB: run a "
            f"smaller model (--set num_layers=N, hidden_size=N), or on a larger machine."
        )
    needed = ranks * WORKER_BASE_BYTES + state
    if needed > available:
        yield (
            f"{ranks} processes need at least {needed / 2**30:.1f} GiB (imports, weights, "
            f"gradients and optimizer state, without activations), and this machine has "
            f"{available / 2**30:.1f} GiB: use fewer processes or a smaller model."
        )


def training_state_bytes(job: Job) -> int:
    """A lower bound of weights, gradients and Adam's state on all ranks: 16 bytes a parameter.

    Counts the matrices of dense layers and of the embedding; replicas hold a copy each, except for
    the 8 bytes of optimizer state (12 with bf16) that the distributed optimizer splits.
    """
    architecture, replicas = job.architecture, job.layout.data_parallel_size
    hidden = architecture.hidden_size
    queries = architecture.query_projection_size
    keys_and_values = 2 * architecture.num_query_groups * architecture.kv_channels
    matrices = 3 if architecture.gated_linear_unit else 2
    layer = hidden * (2 * queries + keys_and_values + matrices * architecture.ffn_hidden_size)
    heads = 2 if architecture.untie_embeddings_and_output_weights else 1
    parameters = architecture.num_layers * layer + heads * job.padded_vocab_size * hidden
    split_bytes = 12 if job.recipe.bf16 or job.recipe.fp16 else 8
    copies = 1 if job.recipe.use_distributed_optimizer else replicas
    whole_bytes = 6 if job.recipe.bf16 or job.recipe.fp16 else 8
    return parameters * (whole_bytes * replicas + split_bytes * copies)


def machine_memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
