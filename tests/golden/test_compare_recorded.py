"""Recorded runs beside what their job predicts: the same products and collectives, line by line."""

import pytest
from tests.recordings import recorded_run

from steptally.cli.account import account_for_run, as_recorded, job_of
from steptally.measure.run import measure_run
from steptally.predict.account import predict
from steptally.predict.gemms_tally import gemms_tally
from steptally.predict.traffic_tally import traffic_tally
from steptally.tally import compare_tallies

RANKS = [("pp2", 0), ("pp2", 1), *(("tp2_dp2", rank) for rank in range(4))]


def job_of_run(name):
    manifest = recorded_run(name).read_manifest()
    return as_recorded(job_of(manifest), manifest)


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_every_product_that_ran_was_predicted(name, rank):
    predicted = gemms_tally(job_of_run(name), rank)
    comparison = compare_tallies(predicted, measure_run(recorded_run(name)), accounts=["gemms"])
    (section,) = comparison.accounts["gemms"]
    assert section.lines
    assert not comparison.beyond(0)


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_every_collective_that_ran_was_predicted(name, rank):
    predicted = traffic_tally(job_of_run(name), rank)
    comparison = compare_tallies(predicted, measure_run(recorded_run(name)), accounts=["traffic"])
    (section,) = comparison.accounts["traffic"]
    assert section.lines
    # The loop that was recorded sums its loss for the log in float64, 16 bytes; Megatron-LM in
    # fp32, 8 bytes. With one data-parallel rank nothing is sent.
    loss = [("A", 8), ("B", 16)] if name == "tp2_dp2" else []
    differing = {
        (line.only_in, line.key.get("bytes_per_call")) for line in section.lines if not line.equal
    }
    assert sorted(differing) == loss


def test_executed_flops_of_both_bases_have_one_convention_and_are_equal():
    run = account_for_run(recorded_run("tp2_dp2"))
    comparison = compare_tallies(predict(job_of_run("tp2_dp2")), run, accounts=["summary"])
    by_name = {line.quantity: line for line in comparison.figures}
    executed = by_name["flops_per_step_executed"]
    assert executed.basis == ("predicted", "measured")
    assert executed.equal
