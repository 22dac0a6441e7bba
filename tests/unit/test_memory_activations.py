"""Activations of a layer against what papers and Megatron-Core's own code say."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.layers import architecture_layers
from steptally.predict.memory.dimensions import dimensions
from steptally.predict.memory.layer import layer_operations
from steptally.predict.memory.operation import Operation, footprint
from steptally.predict.memory.stage import all_stages

S, B, H, A = 1024, 2, 1024, 16
GPT = {
    "num_layers": 2,
    "hidden_size": H,
    "num_attention_heads": A,
    "seq_length": S,
    "vocab_size": 1024,
    "micro_batch_size": B,
    "global_batch_size": B,
    "bf16": True,
    "transformer_impl": "local",
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
# Mean and 1/σ in fp32 of each token, of two LayerNorms, which the paper leaves out.
STATISTICS = 2 * 8 * S * B


def job(**changes):
    return job_from_settings({**GPT, **changes})


def operations(described):
    kind = architecture_layers(described.architecture)[0]
    return {one.name: one for one in layer_operations(dimensions(described), kind)}


def saved(described):
    return sum(operation.saved for operation in operations(described).values())


def test_a_gpt_layer_keeps_34sbh_and_5as2b():
    # Korthikanti et al. 2022 (arXiv:2205.05198), equation 1: sbh (34 + 5as/h).
    assert saved(job()) == 34 * S * B * H + 5 * A * S * S * B + STATISTICS


def test_tensor_and_sequence_parallelism_divide_all_of_it():
    # The same, equation 4: sbh/t (34 + 5as/h).
    split = job(tensor_model_parallel_size=8, sequence_parallel=True, world_size=8)
    assert saved(split) == (34 * S * B * H + 5 * A * S * S * B + STATISTICS) // 8


def test_tensor_parallelism_alone_leaves_10sbh():
    # The same, equation 2: sbh (10 + 24/t + 5as/(ht)).
    split = job(tensor_model_parallel_size=8, world_size=8)
    assert saved(split) == 10 * S * B * H + (24 * S * B * H + 5 * A * S * S * B) // 8 + STATISTICS


def test_recomputing_core_attention_leaves_34sbh():
    # The same, equation 5 with t = 1: the 5as²b are gone.
    assert saved(job(recompute_granularity="selective")) == 34 * S * B * H + STATISTICS


def test_full_recomputation_keeps_a_layers_input():
    (stage,) = all_stages(job(**FULL))
    (layers,) = [segment for segment in stage.segments[0] if segment.name == "layer"]
    assert layers.recomputed
    assert layers.repeats == 2
    (plain,) = all_stages(job())
    assert plain.footprints[0].saved - stage.footprints[0].saved == 2 * (
        saved(job()) - 2 * S * B * H
    )


def test_flash_attention_keeps_queries_keys_values_output_and_a_number_a_row():
    # Transformer Engine's FusedAttnFunc saves q, k, v, out and the log-sum-exp in fp32; its input
    # tensors are views of one QKV output, and `out` is also linear_proj's saved input.
    found = operations(job(transformer_impl="transformer_engine", attention_backend="flash"))
    attention = sum(one.saved for name, one in found.items() if "core_attention" in name)
    projection = found["self_attention.linear_proj"].saved
    assert attention + projection == 4 * (2 * S * B * H) + 4 * A * S * B


def test_the_gradient_of_swiglu_needs_the_up_projections_output_alone():
    # WeightedSwiGLUFunction and SwiGLUFunction (fusions/fused_bias_swiglu.py) save their input.
    found = operations(
        job(swiglu=True, add_bias_linear=False, ffn_hidden_size=4096, hidden_dropout=0)
    )
    assert found["mlp.activation_func"].saved == 2 * 4096 * 2 * S * B
    assert found["mlp.linear_fc2"].saved == 4096 * 2 * S * B


@pytest.mark.parametrize("implementation", ["te", "native"])
def test_logits_are_kept_once_in_bf16_or_as_an_fp32_softmax(implementation):
    # CrossEntropyFunction overwrites the logits; _VocabParallelCrossEntropy saves exp_logits.
    described = job(
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl=implementation,
        transformer_impl="transformer_engine",
    )
    (stage,) = all_stages(described)
    head = next(segment for segment in stage.segments[0] if segment.name == "head")
    loss = next(one for one in head.operations if one.name == "loss")
    assert loss.saved == 1024 * S * B * (2 if implementation == "te" else 4)


def test_a_chain_frees_what_each_backward_has_used():
    chain = [Operation("a", 10, 0, 5), Operation("b", 20, 7, 1)]
    assert footprint(chain).saved == 30
    assert footprint(chain).forward_peak == 37
    assert footprint(chain).backward_peak == 31


def test_an_unknown_recomputed_module_is_refused():
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        all_stages(job(recompute_granularity="selective", recompute_modules=("mlps",)))
