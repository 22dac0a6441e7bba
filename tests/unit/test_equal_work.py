"""Two jobs do the same work, or it is said in what they do not."""

from dataclasses import replace

import pytest
from tests.synthetic_tally import DEMO_JOB

from steptally.job import job_from_settings
from steptally.tally import Figure, Tally
from steptally.tally.equal_work import WORK, differing_settings, why_not_equal_work

SETTINGS = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
    "global_batch_size": 8,
    "world_size": 4,
}


def of(**settings):
    return Tally(basis="predicted", job=job_from_settings({**SETTINGS, **settings}).as_json())


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_model_parallel_size": 2},
        {"pipeline_model_parallel_size": 2},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"micro_batch_size": 2},
        {"use_distributed_optimizer": True},
        {"overlap_grad_reduce": True},
        {"lr": 0.1},
        {"make_vocab_size_divisible_by": 64},
        {"world_size": 8},
    ],
)
def test_how_the_work_is_split_and_run_does_not_change_it(settings):
    assert why_not_equal_work(of(), of(**settings)) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seq_length": 64}, "seq_length (tokens): 32 against 64"),
        ({"global_batch_size": 16}, "global_batch_size (tokens): 8 against 16"),
        ({"num_layers": 4}, "num_layers (architecture): 2 against 4"),
        ({"bf16": True}, "bf16 (precision policy): false against true"),
        ({"optimizer": "sgd"}, "optimizer (optimizer): adam against sgd"),
    ],
)
def test_other_work_is_named(settings, said):
    assert said in why_not_equal_work(of(), of(**settings))


def test_as_many_tokens_in_longer_sequences_are_other_work():
    found = why_not_equal_work(of(), of(seq_length=64, global_batch_size=4))
    assert found == [
        "seq_length (tokens): 32 against 64",
        "global_batch_size (tokens): 8 against 4",
    ]


def test_a_recipe_of_fp8_counts_only_where_fp8_is_on():
    assert why_not_equal_work(of(), of(fp8_recipe="tensorwise")) == []
    both = [of(bf16=True, fp8="hybrid", fp8_recipe=recipe) for recipe in ("delayed", "mxfp8")]
    assert why_not_equal_work(*both) == ["fp8_recipe (precision policy): delayed against mxfp8"]


def test_a_tally_that_names_no_job_may_be_of_any():
    assert why_not_equal_work(of(), Tally(basis="measured")) == [
        "B does not say which job it is of"
    ]


def test_tokens_that_were_really_trained_count_too():
    tokens = {"tokens_per_step": Figure(value=99, unit="token", basis="measured")}
    stated = {"tokens_per_step": Figure(value=256, unit="token", basis="predicted")}
    a, b = replace(of(), summary=stated), replace(of(), summary=tokens)
    assert why_not_equal_work(a, b) == ["tokens_per_step: 256 against 99"]


def test_every_setting_of_the_work_is_one_of_a_job():
    settings = job_from_settings(SETTINGS).settings()
    assert not [name for names in WORK.values() for name in names if name not in settings]


def test_a_job_read_back_from_json_does_not_differ_from_itself():
    listed = {**DEMO_JOB, "layout": {**DEMO_JOB["layout"], "recompute_modules": ("core_attn",)}}
    assert differing_settings(DEMO_JOB, listed) == []


def test_a_run_with_injected_faults_has_no_ratio_of_times_to_one_without():
    clean = of()
    slow = replace(clean, injected=("slow-rank=3:1.5x",))
    assert why_not_equal_work(clean, slow) == [
        "injected faults: none against slow-rank=3:1.5x",
    ]
    assert why_not_equal_work(slow, slow) == []
