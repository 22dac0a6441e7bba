"""This rank's model chunks: Megatron-Core's own modules, and stand-ins where the job needs them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_decoder_layer_specs,
    get_gpt_mtp_block_spec,
)
from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.dot_product_attention import DotProductAttention

from steptally.engine.model import model_arguments
from steptally.job import Job
from steptally.rehearse.attention import fused_attention
from steptally.rehearse.standins import DuplicatedLinear
from steptally.rehearse.substitutions import StandIns


def build_chunks(job: Job, config: TransformerConfig, stand_ins: StandIns) -> list[GPTModel]:
    """One chunk, or one for each virtual stage; the process groups must exist."""
    count = config.virtual_pipeline_model_parallel_size
    return [
        _build_chunk(job, config, stand_ins, stage)
        for stage in ([None] if count is None else range(count))
    ]


def _build_chunk(
    job: Job, config: TransformerConfig, stand_ins: StandIns, stage: int | None
) -> GPTModel:
    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=stage
    )
    for layer in spec.layer_specs:
        _stand_in(job, layer.submodules.self_attention.submodules, stand_ins)
    predictions = _predictions(job, config, spec, stand_ins, stage)
    chunk = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        mtp_block_spec=predictions,
        pre_process=parallel_state.is_pipeline_first_stage(False, stage),
        post_process=parallel_state.is_pipeline_last_stage(False, stage),
        vp_stage=stage,
        **model_arguments(job),
    )
    for parameter in chunk.parameters():
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "half")):
        setattr(chunk, name, partial(_cast, chunk, dtype))
    return chunk


def _predictions(
    job: Job, config: TransformerConfig, spec: Any, stand_ins: StandIns, stage: int | None
) -> Any:
    """Multi-token prediction, whose layers are as the last of the chunk.

    Where the chunk has none, they are as any of the model's, which is Megatron-LM's rule too
    (gpt_builders.py).
    """
    if not config.mtp_num_layers:
        return None
    if not spec.layer_specs:
        spec = get_gpt_decoder_layer_specs(
            config, use_transformer_engine=False, normalization=config.normalization
        )[-1]
        _stand_in(job, spec.submodules.self_attention.submodules, stand_ins)
    return get_gpt_mtp_block_spec(config, spec, False, vp_stage=stage)


def _cast(chunk: GPTModel, dtype: torch.dtype) -> GPTModel:
    """What `Module.bfloat16` and `half` do, which torch refuses for fake parameters."""
    for tensor in (*chunk.parameters(), *chunk.buffers()):
        if tensor.is_floating_point() and tensor.dtype != dtype:
            tensor.data = tensor.data.to(dtype)
    return chunk


def _stand_in(job: Job, attention: Any, stand_ins: StandIns) -> None:
    """Put stand-ins where Transformer Engine's modules would be in a layer's attention."""
    if stand_ins.fused_attention:
        attention.core_attention = fused_attention(job.architecture)
    elif job.architecture.multi_latent_attention:
        attention.core_attention = LatentAttention
    if stand_ins.duplicated_projections:
        attention.linear_kv_down_proj = DuplicatedLinear
        attention.linear_q_down_proj = DuplicatedLinear


class LatentAttention(DotProductAttention):
    """Megatron-Core's own attention with other channels for keys than for values, as MLA needs."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("k_channels", None)
        value_channels = kwargs.pop("v_channels", None)
        super().__init__(config, *args, **kwargs)
        if value_channels is not None:
            heads = config.num_attention_heads // self.tp_group.size()
            self.hidden_size_per_partition = value_channels * heads
