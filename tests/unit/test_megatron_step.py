"""Predicted products, collectives and parameters against a real step of megatron-core."""

from collections import Counter

import pytest
from tests.megatron_oracle import ask_megatron
from tests.megatron_steps import PLAIN, STEPS

from steptally.job import job_from_settings
from steptally.predict.gemms import predict_gemms
from steptally.predict.ranks import coordinates
from steptally.predict.shards import stage_shards
from steptally.predict.traffic import predict_traffic


@pytest.fixture(scope="module")
def answers():
    """What megatron-core did in each step, by its name."""
    cases = [{"settings": PLAIN | settings, "rank": rank} for rank, settings in STEPS.values()]
    return dict(zip(STEPS, ask_megatron("step", cases), strict=True))


def job_and_rank(name):
    rank, settings = STEPS[name]
    return job_from_settings(PLAIN | settings), rank


def where(phase, group):
    """Reductions of gradients and messages between stages may start in any phase."""
    return "step" if group.startswith(("PIPELINE", "DATA", "EXPERT_DATA")) else phase


@pytest.mark.parametrize("name", STEPS)
def test_parameters_stand_in_megatrons_order(answers, name):
    job, rank = job_and_rank(name)
    predicted = [
        [[shard.name, shard.elements] for shard in shards]
        for shards in stage_shards(job, coordinates(job.layout, rank).pp)
    ]
    assert predicted == answers[name]["parameters"]


@pytest.mark.parametrize("name", STEPS)
def test_collectives_are_those_of_megatron(answers, name):
    real = Counter()
    for phase, group, collective, size, calls in answers[name]["collectives"]:
        real[where(phase, group), group, collective, size] += calls
    predicted = Counter()
    for row in predict_traffic(*job_and_rank(name)):
        if row.phase != "logging":  # Megatron-LM's own, not megatron-core's
            key = where(row.phase, row.group), row.group, row.collective, row.bytes_per_call
            predicted[key] += row.calls_per_step
    assert predicted == real


@pytest.mark.parametrize("name", STEPS)
def test_products_are_those_of_megatron(answers, name):
    real = Counter({tuple(product): calls for *product, calls in answers[name]["products"]})
    predicted = Counter()
    for row in predict_gemms(*job_and_rank(name)):
        phase = "backward" if row.phase in ("dgrad", "wgrad") else row.phase
        predicted[phase, row.m, row.n, row.k, row.batch] += row.calls
    assert predicted == real
