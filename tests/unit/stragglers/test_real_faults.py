"""The smaller form of `make confusion`: real ranks, two faults, large enough for any machine."""

import pytest
from tests.confusion import Trial, run, search
from tests.rehearsals import needs_engine

pytestmark = pytest.mark.processes


def test_faults_in_a_real_run_are_named_in_their_places(tmp_path):
    needs_engine()
    # DP 2 × PP 2: ranks 0 and 1 are stage 0, rank 3 is replica 1 of stage 1.
    faults = Trial(
        layout="dp2 pp2", verdict="slow-worker", inject="slow-rank=3:2.5x data-stall=0:1200ms"
    )
    found = search(run(faults, tmp_path, traced=8))
    named = [(one["class"], one["coordinates"]) for one in found["verdicts"]]
    assert ("slow-worker", {"dp": 1, "pp": 1}) in named
    assert ("data-loading", {"dp": 0, "pp": 0}) in named
    # The replay is of the same run: within 2 % of its steps, or it says so.
    assert abs(found["replay_error"]) < 0.02 or any("replay" in one for one in found["warnings"])
