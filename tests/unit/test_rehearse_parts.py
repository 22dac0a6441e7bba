"""The parts of a rehearsal that are plain arithmetic: routing, visible pairs, micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptally.errors import InputError, SteptallyError
from steptally.job import job_from_settings
from steptally.rehearse.accounts import Counts, Memory, ProductKey
from steptally.rehearse.lifetimes import (
    Held,
    anywhere,
    as_in_a_later_step,
    live_bytes,
    peak,
)
from steptally.rehearse.microbatches import extrapolate, rehearsed_counts
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import make_rehearsable
from steptally.rehearse.visible import Visible

SMALL = {
    "num_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
}


def job(**settings):
    return job_from_settings(SMALL | settings)


@given(
    topk=st.integers(1, 4),
    experts=st.integers(4, 16),
    tokens=st.integers(1, 200),
)
def test_balanced_routing_deals_every_copy_and_differs_by_at_most_one(topk, experts, tokens):
    counts = Routing().tokens_per_expert(tokens * topk, experts, tokens)
    assert sum(counts) == tokens * topk
    assert max(counts) - min(counts) <= 1


def test_a_histogram_is_followed_by_largest_remainder():
    # 12 copies at 1:2:3 are 2, 4 and 6; of 11 the shares 1.83, 3.67 and 5.5 round to 2, 4 and 5.
    assert Routing(weights=(1, 2, 3)).tokens_per_expert(12, 3, 6) == (2, 4, 6)
    assert Routing(weights=(1, 2, 3)).tokens_per_expert(11, 3, 6) == (2, 4, 5)


@pytest.mark.parametrize(
    ("weights", "says"),
    [((1, 1), "2 experts, and the job has 4"), ((9, 1, 1, 1), "goes to an expert once")],
)
def test_a_histogram_that_no_router_gives_is_refused(weights, says):
    with pytest.raises(InputError, match=says):
        Routing(weights=weights).tokens_per_expert(8, 4, 4)


@given(
    window=st.none() | st.integers(1, 40),
    block=st.none() | st.integers(1, 40),
    parts=st.sampled_from((1, 2, 4)),
)
def test_visible_pairs_of_all_tiles_are_those_of_the_whole(window, block, parts):
    visible, length = Visible(window=window, block=block), 32
    piece = length // parts
    tiles = sum(
        visible.pairs(i * piece, (i + 1) * piece, j * piece, (j + 1) * piece)
        for i in range(parts)
        for j in range(parts)
    )
    seen = [
        (query, key)
        for query in range(length)
        for key in range(query + 1)
        if (window is None or key > query - window)
        and (block is None or key // block == query // block)
    ]
    assert tiles == visible.pairs(0, length, 0, length) == len(seen)


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({"global_batch_size": 4}, (4,)),
        ({"global_batch_size": 64}, (2, 3)),  # no pipeline: one more than its one stage, and two
        ({"global_batch_size": 64, "pipeline_model_parallel_size": 4, "world_size": 4}, (5, 6)),
        ({"global_batch_size": 11, "pipeline_model_parallel_size": 4, "world_size": 4}, (11,)),
        (
            {
                "global_batch_size": 64,
                "pipeline_model_parallel_size": 4,
                "world_size": 4,
                "virtual_pipeline_model_parallel_size": 2,
            },
            (8, 12),
        ),
        (
            {
                "global_batch_size": 65,
                "pipeline_model_parallel_size": 4,
                "world_size": 4,
                "virtual_pipeline_model_parallel_size": 2,
            },
            (65,),  # the last group of an interleaved schedule is a smaller one
        ),
    ],
)
def test_two_numbers_of_micro_batches_stand_for_many(settings, chosen):
    assert rehearsed_counts(job(**settings)) == chosen


def counts(microbatches, calls, peak_bytes=100):
    key = ProductKey("linear_qkv", "forward", 1, 1, 1, 1, "bf16", 2)
    memory = Memory(
        peak_bytes=peak_bytes,
        first_step_peak_bytes=peak_bytes,
        event="",
        in_flight=(1,),
        held={},
        moments=(),
    )
    return Counts(
        rank=0,
        microbatches=microbatches,
        parameters=1,
        operators=10 * calls,
        products={key: calls},
        collectives={},
        memory=memory,
    )


def test_counts_are_extrapolated_on_a_line():
    found = extrapolate(counts(2, 9), counts(3, 13), 1000)
    assert list(found.products.values()) == [13 + 4 * 997]
    assert found.operators == 10 * (13 + 4 * 997)
    assert found.microbatches == 1000


@pytest.mark.parametrize(
    "more",
    [counts(4, 12), counts(3, 8), counts(3, 13, peak_bytes=101)],
    ids=["half", "less", "peak"],
)
def test_counts_that_are_not_on_a_line_are_no_basis(more):
    with pytest.raises(SteptallyError, match="report this job"):
        extrapolate(counts(2, 9), more, 1000)


def test_a_module_is_named_without_the_number_of_its_layer():
    assert anywhere("mtp.layers.0.transformer_layer.mlp.linear_fc1") == (
        "mtp.layers.*.transformer_layer.mlp.linear_fc1"
    )
    assert anywhere("decoder.layers.11.mlp.experts.local_experts.3.linear_fc2") == (
        "mlp.experts.local_experts.*.linear_fc2"
    )
    assert anywhere("") == ""


def held(size, made, freed, name="mlp"):
    return Held("transient", name, 0, size, made, freed)


def test_a_peak_is_the_most_that_lives_at_once():
    storages = [held(10, 1, None), held(5, 2, 4), held(7, 4, 6), held(100, 9, None)]
    found = peak(storages, 0, 8)
    # At moment 4 the 5 bytes go and the 7 come.
    assert (found.size_bytes, found.moment) == (17, 4)
    assert [each.size_bytes for each in found.held] == [10, 7]
    assert live_bytes(storages, 5) == 17


def test_of_a_later_step_the_optimizer_state_is_there_from_the_start():
    first = [held(10, 1, 5), held(8, 7, None, name="optimizer state")]
    later = as_in_a_later_step(first, 0)
    assert peak(first, 0, 6).size_bytes == 10
    assert peak(later, 0, 6).size_bytes == 18


def rows(**settings):
    found = make_rehearsable(job(**settings)).substitutions
    return {row.setting: row for row in found}


def test_megatrons_own_layers_need_no_stand_in():
    plain = dict.fromkeys(
        ("gradient_accumulation_fusion", "masked_softmax_fusion", "apply_rope_fusion"), False
    )
    assert not rows(transformer_impl="local", **plain)


def test_what_transformer_engine_does_is_rehearsed_and_named():
    found = rows(
        bf16=True, fp8="hybrid", tp_comm_overlap=True, num_experts=4, moe_grouped_gemm=True
    )
    assert {"attention_backend", "transformer_impl", "fp8", "moe_grouped_gemm"} <= found.keys()
    assert (found["fp8"].flops, found["fp8"].traffic) == ("at least", "at most")
    assert found["moe_grouped_gemm"].memory == "stands"


def test_the_job_that_is_rehearsed_has_the_settings_of_its_substitutions():
    rehearsable = make_rehearsable(job(bf16=True, fp8="e4m3", optimizer="muon"))
    recipe = rehearsable.job.recipe
    assert (recipe.fp8, recipe.optimizer, recipe.transformer_impl) == (None, "adam", "local")
    assert rehearsable.stand_ins.fused_attention


def test_mamba_layers_are_refused():
    with pytest.raises(InputError, match="Mamba layers come from"):
        make_rehearsable(job(num_layers=4, hybrid_override_pattern="M-M*"))
