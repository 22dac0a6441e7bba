"""A run's steps are told as they become complete."""

import io
import json

from steptally.run.progress import StepFollower, shown_progress
from steptally.trace.run_directory import RunDirectory


def line(step, rank, duration_ns=1_000_000, loss=None, traced=False):
    record = {"step": step, "rank": rank, "duration_ns": duration_ns, "loss": loss}
    return json.dumps({**record, "traced": traced}) + "\n"


def test_a_step_is_told_once_all_ranks_have_it_with_the_slowest_ranks_wall(tmp_path):
    directory = RunDirectory(tmp_path)
    follower = StepFollower(directory, world_size=2)
    assert list(follower.finished_steps()) == []
    directory.steps.write_text(line(1, 0, 5) + line(2, 0, 5))
    assert list(follower.finished_steps()) == []
    with directory.steps.open("a") as file:
        file.write(line(1, 1, 9, loss=2.5))
    (told,) = follower.finished_steps()
    assert (told.step, told.duration_ns, told.loss) == (1, 9, 2.5)
    assert list(follower.finished_steps()) == []


def test_half_a_line_is_left_for_the_next_look(tmp_path):
    directory = RunDirectory(tmp_path)
    follower = StepFollower(directory, world_size=1)
    whole = line(1, 0)
    directory.steps.write_text(whole[:20])
    assert list(follower.finished_steps()) == []
    directory.steps.write_text(whole)
    assert [told.step for told in follower.finished_steps()] == [1]


def test_without_a_terminal_each_step_is_a_plain_line(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.steps.write_text(line(1, 0, 412_100_000, loss=5.50123, traced=True))
    output = io.StringIO()
    with shown_progress(20, file=output) as show:
        for told in StepFollower(directory, world_size=1).finished_steps():
            show(told)
    assert output.getvalue() == "step 1/20  412.1 ms  loss 5.5012  traced\n"
