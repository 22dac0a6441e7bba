"""Arrays of layouts give what the scalar account gives for each."""

import numpy
import pytest

from steptally.job import read_job
from steptally.predict.flops import flops_per_step
from steptally.predict.layers import count_layer_kinds
from steptally.predict.layout_flops import layouts_flops

TENSOR_PARALLEL = [1, 2, 4, 8, 2]
SEQUENCE_PARALLEL = [0, 1, 0, 1, 0]
BATCH = [16, 16, 32, 64, 16]


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v2-lite", "gpt3-175b"])
def test_each_entry_of_an_array_is_its_scalar(model):
    layouts = {
        "tensor_model_parallel_size": numpy.array(TENSOR_PARALLEL, dtype=float),
        "sequence_parallel": numpy.array(SEQUENCE_PARALLEL, dtype=float),
        "global_batch_size": numpy.array(BATCH, dtype=float),
    }
    counted = layouts_flops(read_job(model), layouts)
    for index, (tp, sp, batch) in enumerate(
        zip(TENSOR_PARALLEL, SEQUENCE_PARALLEL, BATCH, strict=True)
    ):
        job = read_job(
            model,
            [
                f"tensor_model_parallel_size={tp}",
                f"sequence_parallel={bool(sp)}",
                f"global_batch_size={batch}",
                "expert_tensor_parallel_size=1",
            ],
        )
        scalar = flops_per_step(job)
        assert counted.useful[index] == pytest.approx(scalar.useful, rel=1e-14)
        assert counted.executed[index] == pytest.approx(scalar.executed, rel=1e-14)


def test_layers_that_run_again_add_their_forward():
    job = read_job("llama-3-8b")
    (kind,) = count_layer_kinds(job.architecture)
    layouts = {"tensor_model_parallel_size": numpy.ones(2)}
    counted = layouts_flops(job, layouts, {kind: numpy.array([0.0, 32.0])})
    full = read_job(
        "llama-3-8b",
        [
            "recompute_granularity=full",
            "recompute_method=uniform",
            "recompute_num_layers=1",
        ],
    )
    assert counted.executed.tolist() == pytest.approx(
        [flops_per_step(job).executed, flops_per_step(full).executed], rel=1e-14
    )


def test_a_layout_that_changes_the_formulas_is_refused():
    with pytest.raises(ValueError, match="vary in tensor_model_parallel_size"):
        layouts_flops(read_job("llama-3-8b"), {"seq_length": numpy.ones(2)})
