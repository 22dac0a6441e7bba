"""Which layers each pipeline stage and virtual stage holds, as Megatron-Core splits them.

Source: `get_num_layers_to_build`, `get_transformer_layer_offset` and
`PipelineParallelLayerLayout` of megatron-core 0.16.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from steptally.errors import InputError
from steptally.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The part of the model that one pipeline stage holds in one virtual stage.

    `layers` are indices of decoder layers from 0; `mtp_layers` counts MTP modules.
    """

    stage: int
    virtual_stage: int
    layers: range
    embedding: bool
    loss: bool
    mtp_layers: int = 0


def chunks(job: Job) -> tuple[Chunk, ...]:
    """Every chunk, in the order in which a micro-batch visits them.

    Raises `InputError` for a `pipeline_model_parallel_layout` that does not fit the model.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings(
    ...     {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
    ...      "vocab_size": 128, "pipeline_model_parallel_size": 2,
    ...      "virtual_pipeline_model_parallel_size": 2})
    >>> [(chunk.stage, list(chunk.layers)) for chunk in chunks(job)]
    [(0, [0, 1]), (1, [2, 3]), (0, [4, 5]), (1, [6, 7])]
    """
    if job.layout.pipeline_model_parallel_layout:
        return _stated_chunks(job)
    stages = job.layout.pipeline_model_parallel_size
    virtual_stages = job.layout.virtual_pipeline_model_parallel_size or 1
    last = (stages - 1, virtual_stages - 1)
    found = []
    first_layer = 0
    for virtual_stage in range(virtual_stages):
        for stage in range(stages):
            count = _layers_in_chunk(job, stage, virtual_stage, virtual_stages)
            is_last = (stage, virtual_stage) == last
            found.append(
                Chunk(
                    stage=stage,
                    virtual_stage=virtual_stage,
                    layers=range(first_layer, first_layer + count),
                    embedding=stage == virtual_stage == 0,
                    loss=is_last,
                    mtp_layers=(job.architecture.mtp_num_layers or 0) if is_last else 0,
                )
            )
            first_layer += count
    return tuple(found)


def _layers_in_chunk(job: Job, stage: int, virtual_stage: int, virtual_stages: int) -> int:
    layout = job.layout
    stages = layout.pipeline_model_parallel_size
    first = layout.decoder_first_pipeline_num_layers
    last = layout.decoder_last_pipeline_num_layers
    if stage == 0 and first is not None:
        return first // virtual_stages
    if stage == stages - 1 and last is not None:
        return last // virtual_stages
    embedding = layout.account_for_embedding_in_pipeline_split
    loss = layout.account_for_loss_in_pipeline_split
    left = job.architecture.num_layers - (first or 0) - (last or 0) + embedding + loss
    middle_stages = stages - (first is not None) - (last is not None)
    count = left // middle_stages // virtual_stages
    if embedding and stage == virtual_stage == 0:
        count -= 1
    if loss and (stage, virtual_stage) == (stages - 1, virtual_stages - 1):
        count -= 1
    return count


def _stated_chunks(job: Job) -> tuple[Chunk, ...]:
    """Chunks of a `pipeline_model_parallel_layout`, as `Ettt|(tt|)*6,mL`."""
    text = job.layout.pipeline_model_parallel_layout or ""
    parts = expand_pipeline_layout(text).split("|")
    stages = job.layout.pipeline_model_parallel_size
    _check_stated_chunks(job, text, parts)
    found = []
    first_layer = 0
    for position, part in enumerate(parts):
        count = part.count("t")
        found.append(
            Chunk(
                stage=position % stages,
                virtual_stage=position // stages,
                layers=range(first_layer, first_layer + count),
                embedding="E" in part,
                loss="L" in part,
                mtp_layers=part.count("m"),
            )
        )
        first_layer += count
    return tuple(found)


def expand_pipeline_layout(text: str) -> str:
    """Write out the repetitions of a layout; commas are only for the eye.

    >>> expand_pipeline_layout("Et*2|(t|)*2,mL")
    'Ett|t|t|mL'
    """
    expanded = text.replace(",", "").replace(" ", "")
    for repetition in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        expanded = re.sub(repetition, lambda found: found[1] * int(found[2]), expanded)
    return expanded


def _check_stated_chunks(job: Job, text: str, parts: list[str]) -> None:
    name = f"pipeline_model_parallel_layout {text!r}"
    stages = job.layout.pipeline_model_parallel_size
    letters = "".join(parts)
    unknown = sorted(set(letters) - set("EtmL"))
    if unknown:
        raise InputError(
            f"{name} holds {unknown[0]!r}: its letters are E (embedding), t (layer), m (MTP) and "
            f"L (loss)."
        )
    if len(parts) % stages:
        raise InputError(
            f"{name} has {len(parts)} parts: they must be a multiple of "
            f"pipeline_model_parallel_size {stages}."
        )
    for letter, wanted, what in (
        ("t", job.architecture.num_layers, "num_layers"),
        ("m", job.architecture.mtp_num_layers or 0, "mtp_num_layers"),
        ("E", 1, "the number of embeddings"),
        ("L", 1, "the number of losses"),
    ):
        if letters.count(letter) != wanted:
            raise InputError(
                f"{name} holds {letters.count(letter)} {letter}: {what} is {wanted}, and each "
                f"must be placed once."
            )
