"""FLOPs of a dense GPT, useful and executed. Worked examples are derived in docs/formulas."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict import flops_per_step, predict_flops

# The worked example of docs/formulas/flops.md.
WORKED_EXAMPLE = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "ffn_hidden_size": 768,
    "swiglu": True,
    "seq_length": 128,
    "vocab_size": 256,
    "untie_embeddings_and_output_weights": True,
    "global_batch_size": 16,
    "tensor_model_parallel_size": 2,
    "transformer_impl": "local",
}
LINEAR = {"linear_qkv": 536870912, "linear_proj": 268435456}
LINEAR |= {"linear_fc1": 1610612736, "linear_fc2": 805306368}
EXECUTED_ATTENTION = 134217728  # one of QKᵀ and PV, one layer, forward, the full square
EXECUTED = 42681237504


def job(**settings):
    return job_from_settings({**WORKED_EXAMPLE, **settings})


def rows(account, phase):
    return {row.name: (row.useful, row.executed) for row in account if row.phase == phase}


def test_the_worked_example_of_the_docs_gives_its_integers():
    assert flops_per_step(job()) == (41083207680, EXECUTED)


def test_each_term_of_the_worked_example_is_as_derived_by_hand():
    forward = rows(predict_flops(job()), "forward")
    for name, flops in LINEAR.items():
        assert forward[name] == (4 * flops, 4 * flops)
    assert forward["core_attention.qk"] == (4 * 135266304 // 2, 4 * EXECUTED_ATTENTION)
    assert forward["core_attention.pv"] == forward["core_attention.qk"]
    assert forward["output_layer"] == (268435456, 268435456)
    assert forward["embedding"] == (0, 0)


def test_backward_is_twice_forward_and_nothing_is_run_again_without_recompute():
    account = predict_flops(job())
    forward, backward = rows(account, "forward"), rows(account, "backward")
    assert {name: (2 * u, 2 * e) for name, (u, e) in forward.items() if name != "embedding"} == (
        backward
    )
    assert rows(account, "recompute") == {}


def test_rows_add_to_the_step():
    account = predict_flops(job(recompute_granularity="selective"))
    total = (sum(row.useful for row in account), sum(row.executed for row in account))
    assert total == flops_per_step(job(recompute_granularity="selective"))


def test_flash_attention_executes_seven_products_on_the_causal_pairs():
    flash = flops_per_step(job(transformer_impl="transformer_engine", attention_backend="flash"))
    # Useful plus one QKᵀ on the causal pairs in each of 4 layers: 67,633,152 each.
    assert flash == (41083207680, 41083207680 + 4 * 67633152)


def test_unfused_attention_of_transformer_engine_executes_the_full_square():
    unfused = job(transformer_impl="transformer_engine", attention_backend="unfused")
    assert flops_per_step(unfused).executed == EXECUTED


def test_full_uniform_recompute_runs_every_layer_again_but_not_the_head():
    settings = {"recompute_granularity": "full", "recompute_method": "uniform"}
    again = 4 * (sum(LINEAR.values()) + 2 * EXECUTED_ATTENTION)
    counted = flops_per_step(job(**settings, recompute_num_layers=2))
    assert counted == (41083207680, EXECUTED + again)


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ({}, 1),
        ({"pipeline_model_parallel_size": 2}, 2),
        ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}, 4),
    ],
)
def test_block_recompute_runs_the_first_layers_of_each_stage_or_chunk_again(layout, layers):
    settings = {"recompute_granularity": "full", "recompute_method": "block"}
    counted = flops_per_step(job(**settings, **layout, recompute_num_layers=1))
    again = layers * (sum(LINEAR.values()) + 2 * EXECUTED_ATTENTION)
    assert counted.executed == EXECUTED + again


def test_selective_recompute_of_core_attention_runs_both_products_again():
    counted = flops_per_step(job(recompute_granularity="selective"))
    assert counted.executed == EXECUTED + 4 * 2 * EXECUTED_ATTENTION


def test_block_recompute_without_a_number_of_layers_is_refused():
    with pytest.raises(InputError, match="recompute_num_layers"):
        flops_per_step(job(recompute_granularity="full", recompute_method="block"))


def test_packed_documents_attend_within_themselves_and_padding_is_only_executed():
    useful, executed = flops_per_step(job(), packed_lengths=[64, 32])
    # 96 of 128 tokens are useful; pairs 64·65/2 + 32·33/2 = 2,608 of 8,256.
    linear = (4 * sum(LINEAR.values()) + 268435456) * 96 // 128
    attention = 4 * 2 * (2 * 16 * 2608 * 8 * 32)
    assert useful == 3 * (linear + attention)
    assert executed == EXECUTED


def test_packed_documents_longer_than_the_sequence_are_refused():
    with pytest.raises(InputError, match="at most seq_length 128"):
        flops_per_step(job(), packed_lengths=[100, 29])
