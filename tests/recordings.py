"""Where the recordings are that tests read: the project's own, and those beside the checkout."""

from pathlib import Path

import pytest

from steptally.trace.kineto import read_kineto
from steptally.trace.run_directory import RunDirectory

DATA = Path(__file__).parent / "data"
SHARED_TRACES = Path(__file__).parents[2] / "shared" / "traces" / "kineto"

needs_shared_traces = pytest.mark.skipif(
    not SHARED_TRACES.is_dir(), reason="../shared/traces is not there"
)


def recorded_run(name):
    """One of the recorded runs of tests/data."""
    return RunDirectory(DATA / name)


def recorded_trace(name, rank):
    """One rank's trace of a recorded run."""
    return read_kineto(recorded_run(name).trace(rank))
