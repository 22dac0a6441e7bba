"""Published memory against what the account predicts for the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptally.errors import InputError
from steptally.job import Job, job_from_settings
from steptally.job.catalog.devices import find_device
from steptally.predict.memory.limits import refuse_unmodelled
from steptally.predict.memory.stage import all_stages
from steptally.predict.published.deepspeed import STATES, deepspeed_peaks
from steptally.predict.published.flops_check import RECOMPUTE, Comparison
from steptally.predict.published.memory_sources import MemorySource, find_memory_source
from steptally.predict.published.row_settings import architecture_settings
from steptally.predict.published.rows import PublishedRow
from steptally.predict.published.sources import find_source
from steptally.predict.ranks import coordinates

LAYOUT = {
    "seq": "seq_length",
    "mbs": "micro_batch_size",
    "gpus": "world_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "sp": "sequence_parallel",
}
# Largest-rank figures of the row form, in the unit of the source.
FIGURES = ("mem_alloc_max_gib", "mem_gib", "mem_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison(Comparison):
    """One row, in its source's unit; `predicted` includes the source's fitted `outside`.

    `by_rank` holds (predicted, measured) of every rank where the row states them.
    """

    source: MemorySource
    model: str
    by_rank: tuple[tuple[float, float], ...] = ()

    @property
    def pair(self) -> tuple[float, float]:
        """(predicted, measured) of a compared row."""
        return (self.predicted or 0.0, self.measured or 0.0)


def compare_memory(rows: Sequence[PublishedRow]) -> list[Comparison]:
    """Predicted and measured memory of the rank that has most, row by row."""
    return [compare_row(row) for row in rows]


def compare_row(row: PublishedRow) -> MemoryComparison:
    """One row; whatever it lacks becomes its reason."""
    source = find_memory_source(row)
    try:
        measured = _measured(row)
        if source.refuse:
            raise InputError(source.refuse)
        job = memory_job(row, source)
        peaks = [size / source.unit_bytes for size in _peaks(job, row, source)]
        predicted = max(peaks) + source.outside
        if measured is None:
            raise InputError(_ran_out(row, predicted))
        return MemoryComparison(
            id=row.id,
            convention=source.name,
            unit="GiB",
            predicted=predicted,
            measured=measured,
            source=source,
            model=row.model,
            by_rank=_by_rank(job, row, peaks, source),
        )
    except InputError as error:
        reason = str(error).rstrip(".")
    except (TypeError, ValueError, AttributeError) as error:  # a value of another kind
        reason = f"the row is damaged: {error}"
    return MemoryComparison(
        id=row.id, convention=source.name, reason=reason, source=source, model=row.model
    )


def memory_job(row: PublishedRow, source: MemorySource) -> Job:
    """The job that a row describes, completed by its source and by its own `settings`."""
    settings: dict[str, Any] = architecture_settings(row, find_source(row))
    settings.update(source.settings)
    if settings.get("num_experts"):
        settings.update(source.expert_settings)
    if settings.get("multi_latent_attention"):
        settings.update(source.latent_settings)
    settings.update(_layout(row))
    settings.update(RECOMPUTE.get(str(row.values.get("recompute")), {}))
    if source.optimizer in STATES:
        settings.update(_embeddings_as_layers(settings))
    settings.update(row.values.get("settings") or {})
    job = job_from_settings(settings, name=row.id, source=row.id)
    refuse_unmodelled(job)
    return job


def _measured(row: PublishedRow) -> float | None:
    """The largest rank's figure; None for a run that is known to have run out of memory."""
    found = [row.measure(name) for name in FIGURES if row.measure(name) is not None]
    if found:
        return found[0]
    if row.measured.get("oom"):
        return None
    raise InputError("it publishes no memory")


def _layout(row: PublishedRow) -> dict[str, Any]:
    """Layout settings; a global batch that the ranks cannot share evenly is cut down to one."""
    settings = {
        name: row.values[key] for key, name in LAYOUT.items() if row.values.get(key) is not None
    }
    missing = [key for key in ("gbs", "mbs", "gpus") if row.number(key) is None]
    if missing:
        raise InputError(f"the row does not state {', '.join(missing)}")
    ranks = [int(row.number(key) or 1) for key in ("tp", "pp", "cp")]
    together = int(row.values["mbs"]) * (
        int(row.values["gpus"]) // (ranks[0] * ranks[1] * ranks[2])
    )
    if together < 1:
        raise InputError(f"gpus {row.values['gpus']} are fewer than tp · pp · cp")
    batch = int(row.values["gbs"])
    return {**settings, "global_batch_size": max(together, batch // together * together)}


def _embeddings_as_layers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's `type:transformer|embedding` split: embedding and head count as a layer each."""
    layers = settings["num_layers"]
    stages = settings.get("pipeline_model_parallel_size") or 1
    if layers % stages == 0 or (layers + 2) % stages:
        return {}
    return {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }


def _peaks(job: Job, row: PublishedRow, source: MemorySource) -> list[int]:
    """Bytes of a rank of each stage, in the counter of the source but for its constant."""
    if source.optimizer in STATES:
        sharded = row.values.get("zero") != 0
        return deepspeed_peaks(job, source.optimizer, sharded=sharded)
    return [stage.peak for stage in all_stages(job, _device(row))]


def _by_rank(
    job: Job, row: PublishedRow, peaks: Sequence[float], source: MemorySource
) -> tuple[tuple[float, float], ...]:
    stated = row.measured.get("mem_alloc_by_rank_gib") or ()
    return tuple(
        (peaks[coordinates(job.layout, rank).pp] + source.outside, float(measured))
        for rank, measured in enumerate(stated)
    )


def _device(row: PublishedRow) -> Any:
    name = str(row.values.get("gpu") or "").split(" (")[0]
    return find_device(name) if name else None


def _ran_out(row: PublishedRow, predicted: float) -> str:
    capacity = (_device(row).memory_bytes or 0) / 2**30
    verdict = "as predicted" if predicted > capacity else "though predicted to fit"
    return f"it ran out of memory, {verdict}: {predicted:.1f} of {capacity:g} GiB"
