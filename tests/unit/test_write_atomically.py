"""A file that cannot be written is said in one sentence, and nothing half-written stays."""

import pytest

from steptally.errors import WriteError
from steptally.run.schedule import nothing_timed
from steptally.trace.run_directory import write_atomically


def test_a_folder_that_is_a_file_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(WriteError, match=r"taken/tally\.json cannot be written .*name a directory"):
        write_atomically(tmp_path / "taken" / "tally.json", "{}")


def test_what_cannot_replace_leaves_no_half_behind(tmp_path):
    (tmp_path / "tally.json").mkdir()
    with pytest.raises(WriteError):
        write_atomically(tmp_path / "tally.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["tally.json"]


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "traced", "timed"),
    [(20, 3, (7, 8), True), (3, 3, (), False), (5, 3, (4, 5), False), (5, 3, (1, 4), True)],
)
def test_a_run_without_a_timed_step_is_told_so(steps, warmup_steps, traced, timed):
    assert (nothing_timed(steps, warmup_steps, traced) is None) is timed
