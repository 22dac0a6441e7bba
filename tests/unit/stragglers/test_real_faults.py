"""The smaller form of `make confusion`: real ranks, a fault each, large enough for any machine."""

import pytest
from tests.confusion import Trial, answer, run, search
from tests.rehearsals import needs_engine

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "trial",
    [
        Trial(
            layout="dp2 pp2",
            verdict="slow-worker",
            coordinates={"dp": 1, "pp": 1},
            inject="slow-rank=3:4x",
        ),
        Trial(
            layout="tp2 dp2",
            verdict="data-loading",
            coordinates={"dp": 0, "tp": 1},
            inject="data-stall=1:600ms",
        ),
    ],
    ids=lambda trial: trial.inject,
)
def test_a_fault_in_a_real_run_is_named(trial, tmp_path):
    needs_engine()
    found = search(run(trial, tmp_path, traced=13))
    called, is_right = answer(trial, found)
    assert is_right, (called, found["verdicts"])
    # The replay is of the same run: within 2 % of its steps, or it says so.
    assert abs(found["replay_error"]) < 0.02 or any("replay" in one for one in found["warnings"])
