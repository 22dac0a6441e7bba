"""This rank's part of a Megatron-Core GPT, built from a Job.

The process groups must exist (`engine.groups.initialize_groups`); nothing here needs data, and
nothing is kept between calls.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel import (
    set_defaults_if_not_set_tensor_model_parallel_attributes,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from steptally.engine.adapt import require_layers, uses_transformer_engine
from steptally.engine.availability import find_parts
from steptally.engine.config import ddp_config
from steptally.job import Job


def build_chunks(job: Job, config: TransformerConfig) -> list[GPTModel]:
    """This rank's model chunks: one, or one for each virtual pipeline stage.

    `config` is `engine.config.transformer_config(job)`. Raises `MissingPartError` where the job
    states Transformer Engine and it is not installed.
    """
    count = config.virtual_pipeline_model_parallel_size
    stages = [None] if count is None else range(count)
    return [_build_chunk(job, config, stage) for stage in stages]


def wrap_for_data_parallel(
    job: Job, config: TransformerConfig, chunks: list[GPTModel]
) -> list[DistributedDataParallel]:
    """Megatron's DDP around each chunk, in half precision where the job says so.

    Only the first chunk is bucketed (Megatron-LM's rule): the others are off the critical path.
    """
    if config.bf16 or config.fp16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    return [
        DistributedDataParallel(
            config=config,
            ddp_config=ddp_config(job),
            module=chunk,
            disable_bucketing=position > 0,
        )
        for position, chunk in enumerate(chunks)
    ]


def connect_schedule(
    job: Job,
    config: TransformerConfig,
    chunks: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
) -> None:
    """Give the schedule its hooks into DDP and the optimizer, as Megatron-LM's `train` does."""
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if job.recipe.overlap_grad_reduce:
        config.no_sync_func = _one_or_list([chunk.no_sync for chunk in chunks])
        config.grad_sync_func = _one_or_list([chunk.start_grad_sync for chunk in chunks])


def _one_or_list(functions: list[Any]) -> Any:
    """Megatron's schedules take a bare function where there is one model chunk."""
    return functions[0] if len(functions) == 1 else functions


def model_arguments(job: Job) -> dict[str, Any]:
    """What `GPTModel` takes besides its configuration and layers."""
    architecture = job.architecture
    return {
        "vocab_size": job.padded_vocab_size,
        "max_sequence_length": architecture.max_position_embeddings or job.layout.seq_length,
        "share_embeddings_and_output_weights": (
            not architecture.untie_embeddings_and_output_weights
        ),
        "position_embedding_type": architecture.position_embedding_type,
        "rotary_percent": architecture.rotary_percent,
        "rotary_base": architecture.rotary_base,
        "parallel_output": True,
    }


def layer_spec(job: Job, config: TransformerConfig, stage: int | None) -> Any:
    """Which modules a layer is made of: Transformer Engine's, or Megatron-Core's own."""
    parts = find_parts()
    require_layers(job, parts)
    transformer_engine = uses_transformer_engine(job, parts)
    if config.num_moe_experts is not None:
        return get_gpt_decoder_block_spec(
            config,
            use_transformer_engine=transformer_engine,
            normalization=config.normalization,
            vp_stage=stage,
        )
    if transformer_engine:
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    return get_gpt_layer_local_spec(
        qk_layernorm=config.qk_layernorm, normalization=config.normalization
    )


def _build_chunk(job: Job, config: TransformerConfig, stage: int | None) -> GPTModel:
    chunk = GPTModel(
        config=config,
        transformer_layer_spec=layer_spec(job, config, stage),
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        vp_stage=stage,
        **model_arguments(job),
    )
    for parameter in chunk.parameters():
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    if torch.cuda.is_available():
        chunk.cuda()
    return chunk
