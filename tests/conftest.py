"""What holds for every test."""

import os

import pytest
from hypothesis import settings

# A test passes or fails by its result: on a busy machine any example may take seconds.
settings.register_profile("steptally", deadline=None)
settings.load_profile("steptally")


@pytest.fixture(autouse=True)
def _environment_is_restored():
    """Megatron-Core sets NVTE_* for its process when a model is built: later tests must not see."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
