"""Which steps are timed: a run that could time none says so before it starts."""

import pytest

from steptally.cli.run import read_traced_steps
from steptally.errors import InputError, WriteError
from steptally.job import job_from_settings
from steptally.run.launch import launch
from steptally.run.schedule import nothing_timed


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "traced_steps"), [(1, 3, ()), (3, 3, ()), (3, 0, (1, 2, 3))]
)
def test_a_run_of_warm_up_and_traced_steps_alone_times_nothing(steps, warmup_steps, traced_steps):
    assert "no step time" in nothing_timed(steps, warmup_steps, traced_steps)


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "traced_steps"), [(4, 3, ()), (10**30, 0, (1, 2)), (3, 1, (1, 2))]
)
def test_one_step_that_is_neither_is_enough(steps, warmup_steps, traced_steps):
    assert nothing_timed(steps, warmup_steps, traced_steps) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7-5",
        "5-",
        "1-9999999",
        "1-6000,6001-12000",
        "0",
        "0-3",
        "²",
        "1.5",
        ",",
        "none,2",
        "9" * 5000,
    ],
)
def test_traced_steps_that_are_no_numbers_are_refused(text):
    with pytest.raises(InputError, match="--traced-steps got"):
        read_traced_steps(text)


def test_a_directory_that_cannot_be_made_is_refused_before_any_process(tmp_path):
    (tmp_path / "file").write_text("")
    settings = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 8}
    job = job_from_settings({**settings, "vocab_size": 256})
    with pytest.raises(WriteError, match="cannot be written"):
        launch(job, steps=1, directory=tmp_path / "file")
