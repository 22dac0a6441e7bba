"""Balanced routing: rows that each expert multiplies, with capacity, padding and remainders."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.routing import dispatched_rows, expert_capacity, expert_loads

SMALL = {
    "num_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "alltoall",
}


def job(**settings):
    return job_from_settings({**SMALL, **settings})


def loads(**settings):
    return [(load.experts, load.rows) for load in expert_loads(job(**settings))]


def test_every_expert_gets_the_same():
    assert loads() == [(4, 32 * 2 // 4)]


def test_a_remainder_goes_to_the_first_experts():
    # 32 · 2 copies over 6 experts: 10 each, and 4 are left.
    assert loads(num_experts=6) == [(4, 11), (2, 10)]


def test_a_remainder_is_dealt_to_the_ranks_first():
    # 31 · 2 = 62 = 8 · 7 + 6 copies: three experts of each rank get one more, from both ranks.
    settings = {"num_experts": 8, "expert_model_parallel_size": 2, "world_size": 2}
    assert loads(**settings, seq_length=31) == [(3, 2 * 8), (1, 2 * 7)]


def test_what_ranks_cannot_share_equally_is_averaged():
    # 33 · 3 = 99 = 8 · 12 + 3: three copies for two ranks, so that each has 99 rows on average.
    settings = {"num_experts": 8, "expert_model_parallel_size": 2, "world_size": 2}
    assert loads(**settings, seq_length=33, moe_router_topk=3) == [(3, 25), (1, 24)]


def test_an_expert_parallel_rank_has_fewer_experts_with_more_rows():
    assert loads(expert_model_parallel_size=2, world_size=2) == [(2, 32)]


def test_ranks_that_share_an_expert_gather_each_others_rows():
    shared = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_tensor_parallel_size": 2,
        "world_size": 2,
    }
    assert dispatched_rows(job(**shared)) == 16 * 2
    assert loads(**shared) == [(4, 2 * 16 * 2 // 4)]


def test_capacity_drops_what_is_above_it_and_padding_fills_up_to_it():
    # ⌈32 · 2 / 4 · 0.7⌉ = 12 and ⌈16 · 1.3⌉ = 21
    assert expert_capacity(job(moe_expert_capacity_factor=0.7)) == 12
    assert loads(moe_expert_capacity_factor=0.7) == [(4, 12)]
    assert loads(moe_expert_capacity_factor=1.3) == [(4, 16)]
    padded = {"moe_expert_capacity_factor": 1.3, "moe_pad_expert_input_to_capacity": True}
    assert loads(**padded) == [(4, 21)]


@pytest.mark.parametrize(("recipe", "rows"), [("delayed", 16), ("mxfp8", 32)])
def test_eight_bit_products_pad_the_rows_of_each_expert(recipe, rows):
    # get_fp8_align_size of megatron-core 0.16.1
    assert loads(fp8="e4m3", fp8_recipe=recipe, bf16=True, moe_router_topk=1) == [(4, rows)]


def test_a_dense_job_has_no_experts_to_load():
    with pytest.raises(InputError, match="num_experts"):
        expert_loads(job(num_experts=None))
