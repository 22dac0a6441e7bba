"""A model named like a published one but built otherwise is told both parameter counts."""

from pathlib import Path

import pytest

from steptally.job import read_job
from steptally.job.catalog.models import models
from steptally.predict.account import predict
from steptally.predict.named_model import named_model_warnings
from steptally.predict.parameters import predict_parameters

ARGUMENTS = Path(__file__).parents[1] / "golden" / "jobs" / "llama-3-8b.args"


def test_m098_18_a_llama_3_8b_without_gqa_has_8_84_b_parameters():
    """M098-18: the list lacks --group-query-attention --num-query-groups 8."""
    warnings = " ".join(predict(read_job(str(ARGUMENTS))).warnings)
    assert "named like llama-3-8b, which has 8.030 B parameters" in warnings
    assert "build 8.836 B (+10.0%)" in warnings
    assert "num_query_groups 32 instead of 8" in warnings


def test_the_real_model_has_no_warning():
    job = read_job(str(ARGUMENTS), ["num_query_groups=8"])
    assert named_model_warnings(job, predict_parameters(job)) == ()


@pytest.mark.parametrize("model", models().values(), ids=lambda model: model.name)
def test_predicted_parameters_are_the_published_ones(model):
    rows = predict_parameters(read_job(model.name))
    built = sum(row.count for row in rows if not row.name.startswith("mtp"))
    if model.name == "bloom-176b":
        built += 2 * 14336  # the norm after the embedding, which the entry says it leaves out
    exact = isinstance(model.parameters, int)
    assert built == (model.parameters if exact else pytest.approx(model.parameters, rel=0.03))
