"""Rank coordinates and process groups equal megatron-core's own RankGenerator."""

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.megatron_oracle import ask_megatron

from steptally.job import job_from_settings
from steptally.predict.ranks import (
    DENSE_GROUPS,
    EXPERT_GROUPS,
    all_groups,
    coordinates,
    expert_data_parallel_size,
    group_ranks,
    rank_at,
)


def job(tp=1, cp=1, dp=1, pp=1, etp=1, ep=1, tp_pp_dp=False, **settings):
    return job_from_settings(
        {
            "num_layers": pp,
            "hidden_size": 8 * tp,
            "num_attention_heads": tp,
            "seq_length": 2 * cp * tp,
            "vocab_size": 128 * tp,
            "world_size": tp * cp * dp * pp,
            "tensor_model_parallel_size": tp,
            "context_parallel_size": cp,
            "pipeline_model_parallel_size": pp,
            "num_experts": ep * 2,
            "expert_model_parallel_size": ep,
            "expert_tensor_parallel_size": etp,
            "use_tp_pp_dp_mapping": tp_pp_dp,
            **settings,
        }
    )


def random_cases(count):
    generator = random.Random(20261129)
    cases = []
    while len(cases) < count:
        names = ("tp", "cp", "dp", "pp", "etp", "ep")
        case = {name: generator.choice([1, 2, 3, 4]) for name in names}
        case["tp_pp_dp"] = generator.random() < 0.5
        dense, expert = case["tp"] * case["cp"], case["etp"] * case["ep"]
        # Megatron refuses pp inside dp unless both grids have the same number of replicas.
        refused = case["tp_pp_dp"] and case["pp"] > 1 and dense != expert
        if dense * case["dp"] % expert == 0 and not refused:
            cases.append(case)
    return cases


def test_every_group_equals_megatrons_rank_generator():
    cases = random_cases(60)
    questions = []
    for case in cases:
        layout = job(**case).layout
        questions.append(
            {
                **case,
                "edp": expert_data_parallel_size(layout),
                "order": layout.order,
                "dense_tokens": ["-".join(axes) for axes in DENSE_GROUPS.values()],
                "expert_tokens": ["-".join(axes) for axes in EXPERT_GROUPS.values()],
            }
        )
    for case, answer in zip(cases, ask_megatron("ranks", questions), strict=True):
        for kind, names in (("dense", DENSE_GROUPS), ("expert", EXPERT_GROUPS)):
            for name, axes in names.items():
                found = sorted(map(list, all_groups(job(**case), name)))
                assert found == sorted(answer[kind]["-".join(axes)]), (case, name)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_coordinates_lead_back_to_the_rank(tp, cp, dp, pp, tp_pp_dp):
    layout = job(tp=tp, cp=cp, dp=dp, pp=pp, etp=tp, ep=cp, tp_pp_dp=tp_pp_dp).layout
    for rank in range(layout.world_size):
        at = coordinates(layout, rank)
        assert rank_at(layout, tp=at.tp, cp=at.cp, dp=at.dp, pp=at.pp) == rank


def test_a_rank_of_a_16384_rank_job_has_its_groups_at_once():
    # Llama-3.1-405B: TP8 CP16 PP16 DP8; tp runs fastest, then cp, dp, pp (tp-cp-ep-dp-pp)
    large = job(tp=8, cp=16, dp=8, pp=16)
    assert group_ranks(large, "TENSOR_MODEL_PARALLEL_GROUP", 9000) == tuple(range(9000, 9008))
    assert group_ranks(large, "PIPELINE_MODEL_PARALLEL_GROUP", 5)[:3] == (5, 1029, 2053)
    assert len(group_ranks(large, "DATA_PARALLEL_GROUP_WITH_CP", 5)) == 128
