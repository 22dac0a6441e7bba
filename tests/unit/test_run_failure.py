"""Of many failed ranks, the one that caused the others is named, with its own words."""

import json
import os

import pytest

from steptally.run.failure import (
    RankFailure,
    describe_failure,
    exception_line,
    first_failure,
    read_failures,
)
from steptally.trace.run_directory import RunDirectory, write_atomically

SECOND = 1_000_000_000
# What gloo says in torch 2.13 in a rank whose peer was killed.
LOST_PEER = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
    "Connection closed by peer [127.0.0.1]:41321"
)


def failure(rank, exit_code, seconds=10, error=None):
    return RankFailure(
        rank=rank, pid=100 + rank, exit_code=exit_code, unix_ns=seconds * SECOND, error=error
    )


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        # Killed ranks say nothing; their peers complain before torchrun notices the death.
        ([failure(0, 1, 10, LOST_PEER), failure(2, -9, 11), failure(1, 1, 10, LOST_PEER)], 2),
        # A rank that raises is ended by no signal; the rest are ended by torchrun.
        ([failure(0, -15, 11), failure(1, 1, 10, "ValueError: boom"), failure(2, -15, 11)], 1),
        # A peer's C++ runtime may abort because of the rank that raised, though noticed earlier.
        ([failure(0, -6, 9), failure(3, 1, 10, "ValueError: boom")], 3),
        # The same error on all ranks: the earliest.
        ([failure(0, 1, 12, "ValueError: a"), failure(1, 1, 10, "ValueError: a")], 1),
        # Nothing but lost peers (a host went away): the earliest of those.
        ([failure(0, 1, 12, LOST_PEER), failure(1, 1, 11, LOST_PEER), failure(2, -15)], 1),
    ],
)
def test_the_first_cause_is_told_from_what_follows_from_it(failures, first):
    assert first_failure(failures).rank == first


def test_a_rank_that_was_killed_is_named_with_the_signal_and_the_usual_reason(tmp_path):
    text = describe_failure(failure(2, -9), RunDirectory(tmp_path))
    assert text.startswith("rank 2 (pid 102) was killed by SIGKILL")
    assert "memory" in text


def test_a_rank_that_left_no_error_is_shown_by_the_end_of_its_log(tmp_path):
    directory = RunDirectory(tmp_path)
    write_atomically(directory.log(1), "first line\n" + "noise\n" * 20 + "Fatal: no device\n")
    text = describe_failure(failure(1, 3), directory)
    assert "exited with status 3" in text
    assert "Fatal: no device" in text
    assert "first line" not in text


def test_the_exception_of_a_traceback_is_told_whole_and_without_its_frames():
    text = """Traceback (most recent call last):
  File "worker.py", line 3, in <module>
    train()
  File "train.py", line 9, in train
    raise ValueError(message)
ValueError: the first line
and the second
"""
    assert exception_line(text) == "ValueError: the first line\nand the second"


def test_an_error_that_is_no_traceback_is_told_as_it_is():
    text = "num_layers is 3 and pipeline_model_parallel_size 2.\n  Use 2 or 4 layers."
    assert exception_line(text) == text


def test_an_error_file_dates_and_explains_its_rank(tmp_path):
    directory = RunDirectory(tmp_path)
    rows = [{"rank": 0, "pid": 7, "exit_code": 1, "noticed_unix_s": 50}]
    write_atomically(directory.failures, json.dumps(rows))
    write_atomically(directory.error(0), "ValueError: boom")
    os.utime(directory.error(0), ns=(40 * SECOND, 40 * SECOND))
    (found,) = read_failures(directory)
    assert (found.pid, found.unix_ns, found.error) == (7, 40 * SECOND, "ValueError: boom")
