"""What must hold of the matrix products of every job."""

from hypothesis import HealthCheck, given, settings
from tests.property.random_jobs import jobs

from steptally.predict.flops import flops_per_step, predict_flops
from steptally.predict.gemms import predict_gemms
from steptally.predict.ranks import rank_at


def rows_of_all_ranks(job):
    """Rows of one rank for each stage and context-parallel place, and how many ranks are alike."""
    layout = job.layout
    alike = layout.tensor_model_parallel_size * layout.data_parallel_size
    for pp in range(layout.pipeline_model_parallel_size):
        for cp in range(layout.context_parallel_size):
            rank = rank_at(layout, cp=cp, pp=pp)
            yield from ((row, alike) for row in predict_gemms(job, rank))


@given(jobs())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
def test_products_of_all_ranks_add_up_to_the_executed_flops(job):
    total = sum(row.flops * alike for row, alike in rows_of_all_ranks(job))
    assert total == flops_per_step(job).executed


@given(jobs())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
def test_they_do_so_term_by_term_and_phase_by_phase(job):
    found = {}
    for row, alike in rows_of_all_ranks(job):
        phase = "backward" if row.phase in ("dgrad", "wgrad") else row.phase
        found[row.name, phase] = found.get((row.name, phase), 0) + row.flops * alike
    expected = {(row.name, row.phase): row.executed for row in predict_flops(job)}
    del expected["embedding", "forward"]  # a lookup, no product
    assert found == expected
