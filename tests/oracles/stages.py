"""What megatron-core's own functions say each stage holds. stdin: cases, stdout: answers."""

import json
import sys

from megatron.core import parallel_state
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset


def config(case):
    return TransformerConfig(
        num_layers=case["num_layers"],
        hidden_size=8,
        num_attention_heads=1,
        pipeline_dtype="bf16",
        pipeline_model_parallel_size=case["pp"],
        virtual_pipeline_model_parallel_size=case.get("vpp"),
        num_layers_in_first_pipeline_stage=case.get("first"),
        num_layers_in_last_pipeline_stage=case.get("last"),
        account_for_embedding_in_pipeline_split=case.get("embedding", False),
        account_for_loss_in_pipeline_split=case.get("loss", False),
        pipeline_model_parallel_layout=case.get("layout"),
        mtp_num_layers=case.get("mtp"),
    )


def answer(case):
    settings = config(case)
    virtual = settings.virtual_pipeline_model_parallel_size
    parallel_state._VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE = virtual
    found = []
    for vpp in range(virtual or 1):
        for pp in range(case["pp"]):
            # The layout's functions read the rank from here, not from their argument.
            parallel_state._MPU_PIPELINE_MODEL_PARALLEL_RANK = pp
            parallel_state._MPU_PIPELINE_MODEL_PARALLEL_WORLD_SIZE = case["pp"]
            stage = vpp if virtual else None
            count = get_num_layers_to_build(settings, stage, pp)
            offset = get_transformer_layer_offset(settings, stage, pp)
            mtp = 0
            if isinstance(settings.pipeline_model_parallel_layout, PipelineParallelLayerLayout):
                mtp = settings.pipeline_model_parallel_layout.get_num_layers_to_build(
                    LayerType.mtp, stage, pp
                )
            elif pp == case["pp"] - 1 and vpp == (virtual or 1) - 1:
                mtp = case.get("mtp") or 0
            found.append([pp, vpp, offset, offset + count, mtp])
    return found


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
