"""Every parameter tensor of one rank, chunk by chunk, as `named_parameters()` lists them.

Source: `GPTModel` and `LanguageModule.setup_embeddings_and_output_layer` of megatron-core 0.16.1.
"""

from __future__ import annotations

from dataclasses import replace

from steptally.job.job import Job
from steptally.predict.layer_shards import layer_shards
from steptally.predict.layers import layer_kinds, mtp_layer_kinds
from steptally.predict.shard import Shard, column, norm, prefixed
from steptally.predict.stages import Chunk, chunks_of_stage


def stage_shards(job: Job, pp: int) -> tuple[tuple[Shard, ...], ...]:
    """The parameters of each chunk of pipeline rank `pp`; equal on all ranks of that stage.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings({"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1,
    ...     "seq_length": 8, "padded_vocab_size": 16, "position_embedding_type": "rope",
    ...     "transformer_impl": "local"})
    >>> [shard.name for shard in stage_shards(job, 0)[0]][:2]
    ['embedding.word_embeddings.weight', 'decoder.layers.0.input_layernorm.weight']
    """
    return tuple(chunk_shards(job, chunk) for chunk in chunks_of_stage(job, pp))


def chunk_shards(job: Job, chunk: Chunk) -> tuple[Shard, ...]:
    """The parameters of one model chunk."""
    kinds, hidden = layer_kinds(job), job.architecture.hidden_size
    shards = _embedding(job, chunk)
    for position, number in enumerate(chunk.layers):
        shards += prefixed(f"decoder.layers.{position}", layer_shards(job, kinds[number]))
    if chunk.final_norm:
        shards += prefixed("decoder", norm(job, "final_layernorm", hidden))
    for depth in range(chunk.mtp_layers):
        shards += prefixed(f"mtp.layers.{depth}", _mtp(job, depth))
    return tuple(shards + _output_layer(job, chunk))


def _embedding(job: Job, chunk: Chunk) -> list[Shard]:
    """The word embedding (cut over the vocabulary), and learned positions."""
    architecture = job.architecture
    if not chunk.embedding_table:
        return []
    shards = [
        Shard(
            name="word_embeddings.weight",
            elements=_vocabulary_rows(job) * architecture.hidden_size,
            shared_embedding=_embedding_is_shared(job, chunk),
        )
    ]
    if architecture.position_embedding_type == "learned_absolute":
        positions = architecture.max_position_embeddings or job.layout.seq_length
        shards.append(
            Shard(name="position_embeddings.weight", elements=positions * architecture.hidden_size)
        )
    return prefixed("embedding", shards)


def _mtp(job: Job, depth: int) -> list[Shard]:
    """One multi-token-prediction depth: two norms, the projection of both inputs, a layer."""
    hidden, tp = job.architecture.hidden_size, job.layout.tensor_model_parallel_size
    return [
        *norm(job, "enorm", hidden),
        *norm(job, "hnorm", hidden),
        *column(job, "eh_proj", 2 * hidden, hidden // tp, bias=False),
        *prefixed("transformer_layer", layer_shards(job, mtp_layer_kinds(job)[depth])),
        *norm(job, "final_layernorm", hidden),
    ]


def _output_layer(job: Job, chunk: Chunk) -> list[Shard]:
    """The LM head; where it is tied and its chunk also embeds, the embedding serves instead."""
    tied = not job.architecture.untie_embeddings_and_output_weights
    if not chunk.head or (tied and chunk.embedding):
        return []
    head = Shard(
        name="output_layer.weight", elements=_vocabulary_rows(job) * job.architecture.hidden_size
    )
    copied = tied and not chunk.mtp_layers and job.layout.pipeline_model_parallel_size > 1
    return [replace(head, shared_embedding=copied)]


def _embedding_is_shared(job: Job, chunk: Chunk) -> bool:
    """Whether another stage holds a copy, whose gradients are summed with this one's."""
    if job.layout.pipeline_model_parallel_size == 1:
        return False
    tied = not job.architecture.untie_embeddings_and_output_weights
    copied = tied or bool(job.architecture.mtp_num_layers)
    if chunk.embedding:
        return copied and not chunk.head
    return True


def _vocabulary_rows(job: Job) -> int:
    return job.padded_vocab_size // job.layout.tensor_model_parallel_size
