"""Which decoder layers, embedding, MTP depths and LM head each pipeline stage holds.

A *chunk* is what one virtual stage of one pipeline rank builds. Sources, all in megatron-core
0.16.1: `get_num_layers_to_build` (transformer/transformer_block.py), `get_transformer_layer_offset`
(transformer/transformer_layer.py), `mtp_on_this_rank` (transformer/multi_token_prediction.py).
"""

from __future__ import annotations

from typing import NamedTuple

from steptally.errors import InputError
from steptally.job.job import Job
from steptally.predict.pipeline_layout import LayoutStage, parse_pipeline_layout


class Chunk(NamedTuple):
    """The model part of one pipeline rank `pp` and virtual stage `vpp`, both from 0.

    `layers` are decoder layer numbers from 0 over the whole model. `embedding`: token embedding at
    the input (`pre_process`). `mtp_layers`: multi-token-prediction depths built here, which bring a
    copy of the embedding. `head`: LM head and loss (`post_process`). `final_norm`: the norm after
    the last decoder layer, which with MTP stands in the chunk of that layer, else at the head.
    """

    pp: int
    vpp: int
    layers: range
    embedding: bool
    mtp_layers: int
    head: bool
    final_norm: bool

    @property
    def embedding_table(self) -> bool:
        """Whether the chunk holds the word embedding's weight: for its input or for MTP."""
        return self.embedding or self.mtp_layers > 0


def model_chunks(job: Job) -> tuple[Chunk, ...]:
    """Every chunk of the model in the order in which a micro-batch passes through them.

    That order is virtual stage by virtual stage, each over all pipeline ranks. Raises `InputError`
    for a `pipeline_model_parallel_layout` or an uneven split that Megatron-Core would refuse.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128, "pipeline_model_parallel_size": 2})
    >>> [chunk.layers for chunk in model_chunks(job)]
    [range(0, 2), range(2, 4)]
    """
    stages = _stages(job)
    last_layer = job.architecture.num_layers - 1
    chunks, first = [], 0
    for index, stage in enumerate(stages):
        layers = range(first, first + stage.decoder_layers)
        first = layers.stop
        head = index == len(stages) - 1
        chunks.append(
            Chunk(
                pp=index % job.layout.pipeline_model_parallel_size,
                vpp=index // job.layout.pipeline_model_parallel_size,
                layers=layers,
                embedding=index == 0,
                mtp_layers=stage.mtp_layers,
                head=head,
                final_norm=last_layer in layers if job.architecture.mtp_num_layers else head,
            )
        )
    return tuple(chunks)


def chunks_of_stage(job: Job, pp: int) -> tuple[Chunk, ...]:
    """The chunks of pipeline rank `pp`, by virtual stage."""
    return tuple(chunk for chunk in model_chunks(job) if chunk.pp == pp)


def virtual_stages(job: Job) -> int:
    """Chunks of each pipeline rank: as stated, or as `pipeline_model_parallel_layout` implies."""
    return len(_stages(job)) // job.layout.pipeline_model_parallel_size


def _stages(job: Job) -> tuple[LayoutStage, ...]:
    """What every chunk holds, in the order of model depth."""
    layout, mtp_layers = job.layout, job.architecture.mtp_num_layers or 0
    _one_way_of_splitting(job)
    if layout.pipeline_model_parallel_layout is not None:
        return parse_pipeline_layout(
            layout.pipeline_model_parallel_layout,
            pipeline_size=layout.pipeline_model_parallel_size,
            virtual_size=layout.virtual_pipeline_model_parallel_size,
            num_layers=job.architecture.num_layers,
            mtp_layers=mtp_layers,
        )
    pipeline_size = layout.pipeline_model_parallel_size
    virtual_size = layout.virtual_pipeline_model_parallel_size or 1
    stages = pipeline_size * virtual_size
    return tuple(
        LayoutStage(
            decoder_layers=_decoder_layers(job, index % pipeline_size)
            - (layout.account_for_embedding_in_pipeline_split and index == 0)
            - (layout.account_for_loss_in_pipeline_split and index == stages - 1),
            mtp_layers=mtp_layers if index == stages - 1 else 0,
        )
        for index in range(stages)
    )


def _decoder_layers(job: Job, pp: int) -> int:
    """Layers of one chunk of rank `pp`, before an embedding or loss counted as a layer is taken."""
    layout = job.layout
    virtual_size = layout.virtual_pipeline_model_parallel_size or 1
    first, last = layout.decoder_first_pipeline_num_layers, layout.decoder_last_pipeline_num_layers
    stages = layout.pipeline_model_parallel_size
    if pp == stages - 1 and last is not None:
        layers = last
    elif pp == 0 and first is not None:
        layers = first
    else:
        counted = int(layout.account_for_embedding_in_pipeline_split)
        counted += layout.account_for_loss_in_pipeline_split
        left = job.architecture.num_layers + counted - (first or 0) - (last or 0)
        layers = left // (stages - (first is not None) - (last is not None))
    if layers % virtual_size:
        raise InputError(
            f"pipeline stage {pp} holds {layers} layers, which do not divide into "
            f"virtual_pipeline_model_parallel_size {virtual_size} chunks: use a multiple of "
            f"{virtual_size} in decoder_first_pipeline_num_layers and "
            f"decoder_last_pipeline_num_layers, or state pipeline_model_parallel_layout."
        )
    return layers // virtual_size


def _one_way_of_splitting(job: Job) -> None:
    """Megatron-Core refuses two of its three ways of making stages unequal at once."""
    layout = job.layout
    uneven = (
        layout.decoder_first_pipeline_num_layers is not None
        or layout.decoder_last_pipeline_num_layers is not None
    )
    counted = (
        layout.account_for_embedding_in_pipeline_split or layout.account_for_loss_in_pipeline_split
    )
    written = layout.pipeline_model_parallel_layout is not None
    if uneven + counted + written > 1:
        raise InputError(
            "the job splits layers over stages in more than one way: keep one of "
            "pipeline_model_parallel_layout, decoder_first/last_pipeline_num_layers and "
            "account_for_embedding/loss_in_pipeline_split."
        )
