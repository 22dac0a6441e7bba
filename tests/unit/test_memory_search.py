"""The array form of the worst stage's memory against the account, layout by layout."""

import itertools

import numpy as np
import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.memory.layouts import Layouts
from steptally.predict.memory.search import worst_stage_bytes
from steptally.predict.memory.stage import all_stages

LLAMA = {
    "num_layers": 16,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 16,
    "num_query_groups": 8,
    "vocab_size": 32768,
    "seq_length": 2048,
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "bf16": True,
    "use_distributed_optimizer": True,
    "sequence_parallel": True,
}
EXPERTS = {
    **LLAMA,
    "num_experts": 16,
    "moe_ffn_hidden_size": 1024,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_layer_freq": [0] * 2 + [1] * 14,
}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
# Tensor, pipeline, virtual, context, expert, data parallel, micro-batch size, micro-batches.
GRID = list(itertools.product((2, 4), (1, 2, 4), (1, 2), (1, 2), (1, 4), (2, 8), (1, 2), (8,)))


def both(base, grid):
    """(found, expected) bytes of the layouts that Megatron would run."""
    rows, expected = [], []
    for tp, pp, virtual, cp, ep, dp, micro_batch, microbatches in grid:
        settings = {
            **base,
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None,
            "context_parallel_size": cp,
            "expert_model_parallel_size": ep,
            "expert_tensor_parallel_size": 1,
            "world_size": tp * pp * cp * dp,
            "micro_batch_size": micro_batch,
            "global_batch_size": microbatches * micro_batch * dp,
        }
        try:
            stages = all_stages(job_from_settings(settings))
        except InputError:
            continue
        rows.append((tp, pp, virtual, cp, ep, 1, dp, micro_batch, microbatches))
        expected.append(max(stage.peak for stage in stages))
    columns = dict(zip(Layouts.__slots__, np.array(rows, dtype=float).T, strict=True))
    job = job_from_settings({**base, "tensor_model_parallel_size": 2, "world_size": 2})
    return worst_stage_bytes(job, Layouts(**columns)), np.array(expected)


@pytest.mark.parametrize("changes", [{}, FULL, {"transformer_impl": "local"}])
def test_dense_layouts_agree_with_the_account(changes):
    dense = [layout for layout in GRID if layout[4] == 1]
    found, expected = both({**LLAMA, **changes}, dense)
    assert len(found) > 40
    assert np.abs(found / expected - 1).max() < 0.003


def test_mixed_layers_of_experts_agree_within_three_percent():
    """Stages of dense and expert layers together are taken apart by kind, not layer by layer."""
    found, expected = both(EXPERTS, GRID)
    assert len(found) > 40
    assert np.abs(found / expected - 1).max() < 0.03
    assert np.abs(found / expected - 1).mean() < 0.005
