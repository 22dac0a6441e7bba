"""Megatron's iteration lines in every dialect, and what a log says as a whole."""

import pytest

from steptally.errors import InputError
from steptally.measure.log import parse_line, read_log
from steptally.measure.log_series import sort_lines, spread

# The forms of lines in public places (../shared/traces/logs/megatron_dialects.txt), shortened.
DIALECTS = {
    "megatron-lm": (
        (
            " [2024-04-06 03:02:12] iteration       71/     100 | consumed samples:         9088 | "
            "elapsed time per iteration (ms): 5361.6 | throughput per GPU (TFLOP/s/GPU): 243.6 | "
            "global batch size:   128 | lm loss: 1.818812E+00 | number of skipped iterations:   0 |"
        ),
        (71, 5361.6, 9088, 128, 243.6, 1.818812),
    ),
    "primus": (
        (
            "[20251202 09:12:08][rank-7/8][INFO ] [trainer.py:2560] : iteration 126/ 5000 | "
            "consumed samples: 16128 | elapsed time per iteration (ms): 13372.8/13364.7 | hip mem "
            "usage/free: 153.81GB | throughput per GPU (TFLOP/s/GPU): 567.6/568.0 | "
            "tokens per GPU: 9801.4/9807.3 | global batch size: 128 | lm loss: 6.5E-03 |"
        ),
        (126, 13372.8, 16128, 128, 567.6, 0.0065),
    ),
    "without throughput": (
        (
            " iteration      122/  250000 | consumed samples:       124928 | elapsed time per "
            "iteration (ms): 86545.2 | global batch size:  1024 | lm loss: 2.504220E+00 |"
        ),
        (122, 86545.2, 124928, 1024, None, 2.50422),
    ),
    "deepspeed": (
        (
            "rank 7 | iteration        1/   45776 | consumed samples:     128 | consumed tokens: "
            "      262144 | elapsed time this iteration (ms): 33222.7 |"
        ),
        (1, 33222.7, 128, None, None, None),
    ),
    "bigscience": (
        (
            " iteration   2/   95367 | consumed samples:   4096 | elapsed time per iteration "
            "(s): 769.99 | global batch size:  2048 | lm loss: 6.384045E+01 | TFLOPs: 108.47 |"
        ),
        (2, 769990.0, 4096, 2048, 108.47, 63.84045),
    ),
    "old loss name": (
        (
            " iteration   1/    1000 | consumed samples:   1024 | elapsed time per iteration "
            "(ms): 159778.9 | global batch size:  1024 | lm-loss: 1.244238E+01 | loss scale: -1.0 |"
        ),
        (1, 159778.9, 1024, 1024, None, 12.44238),
    ),
    "nemo": (
        (
            "Training epoch 0, iteration 9/49 | lr: 1e-05 | global_batch_size: 128 "
            "| global_step: 9 | reduced_train_loss: 11.03 | train_step_timing in s: 6.7 "
            "| TFLOPS_per_GPU: 500.2"
        ),
        (9, 6700.0, None, 128, 500.2, 11.03),
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_read(dialect):
    text, expected = DIALECTS[dialect]
    line = parse_line(text)
    found = (
        line.iteration,
        line.duration_ms,
        line.consumed_samples,
        line.global_batch_size,
        line.tflops_per_device,
        line.loss,
    )
    assert found == pytest.approx(expected)


def test_the_world_size_stands_in_a_rank_prefix():
    assert parse_line(DIALECTS["primus"][0]).world_size == 8


@pytest.mark.parametrize(
    "text",
    [
        "iteration 5/ 100 | elapsed time per iteration (ms): nan |",
        "iteration 5/ 100 | elapsed time per iteration (ms): 0.0 |",
        "iteration 5/ 100 | elapsed time per iter",
        "elapsed time per iteration (ms): 100.0 |",
        "validation loss at iteration 10 | lm loss value: 1.0 | elapsed time: 3 |",
    ],
)
def test_a_damaged_or_other_line_is_none(text):
    assert parse_line(text) is None


def log(tmp_path, *lines):
    path = tmp_path / "run.log"
    path.write_text("\n".join(("starting", *lines, "done")) + "\n")
    return path


def line(iteration, duration=100.0, batch=8, **more):
    fields = {"skipped": 0, "samples": iteration * batch, "loss": 5.0, **more}
    return (
        f" iteration {iteration}/ 1000 | consumed samples: {fields['samples']} | elapsed time per "
        f"iteration (ms): {duration} | global batch size: {batch} | lm loss: {fields['loss']} | "
        f"number of skipped iterations: {fields['skipped']} | number of nan iterations: 0 |"
    )


def series(tmp_path, *lines, **options):
    return sort_lines(read_log(log(tmp_path, *lines)), **options)


def iterations(lines):
    return [line.iteration for line in lines]


def test_line_numbers_are_those_of_the_file(tmp_path):
    assert [found.number for found in read_log(log(tmp_path, line(1), "noise", line(2)))] == [2, 4]


def test_the_same_line_of_several_ranks_counts_once(tmp_path):
    found = read_log(log(tmp_path, line(1), line(1), line(2), line(2)))
    assert iterations(found) == [1, 2]


def test_slow_lines_at_the_head_are_warm_up(tmp_path):
    found = series(tmp_path, line(1, 900.0), line(2, 130.0), *(line(n) for n in range(3, 9)))
    assert iterations(found.warmup) == [1, 2]
    assert iterations(found.steady) == [3, 4, 5, 6, 7, 8]


def test_a_line_stands_for_its_distance_to_the_line_before(tmp_path):
    # Megatron-LM prints iteration 1 and then every log interval: 1 + 9 + 10 + 10 = 30 iterations.
    found = series(tmp_path, line(1, 900.0), line(10), line(20), line(30))
    assert (found.warmup_iterations, found.steady_iterations) == (1, 29)


def test_a_stated_warm_up_wins(tmp_path):
    found = series(tmp_path, *(line(n) for n in range(1, 9)), warmup_iterations=4)
    assert iterations(found.warmup) == [1, 2, 3, 4]


def test_skipped_steps_are_set_apart(tmp_path):
    found = series(tmp_path, line(1), line(2), line(3, skipped=1), line(4))
    assert (iterations(found.skipped), iterations(found.steady)) == ([3], [2, 4])


def test_a_growing_batch_is_set_apart_from_the_full_one(tmp_path):
    ramp = [line(n, 50.0, batch=4) for n in range(1, 5)]
    found = series(tmp_path, *ramp, *(line(n, samples=16 + n) for n in range(5, 9)))
    assert iterations(found.rampup) == [2, 3, 4]
    assert iterations(found.steady) == [5, 6, 7, 8]


def test_a_restart_begins_another_start_and_its_repetitions_are_counted(tmp_path):
    first = [line(n) for n in range(1, 7)]
    second = [line(n) for n in range(4, 9)]
    found = series(tmp_path, *first, *second)
    assert (found.starts, found.repeated) == (2, 3)
    assert iterations(found.warmup) == [1, 4]


def test_a_line_can_stand_for_an_interval_of_iterations(tmp_path):
    assert series(tmp_path, *(line(n) for n in (10, 20, 30))).interval == 10


def test_where_nothing_is_steady_all_lines_are_taken_and_it_is_said(tmp_path):
    found = series(tmp_path, line(1, skipped=1), line(2, skipped=1))
    assert found.everything_set_apart
    assert iterations(found.steady) == [1, 2]


def test_the_spread_is_median_and_quartiles():
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.lowest, found.low_quartile, found.median) == (1.0, 2.0, 3.0)
    assert (found.high_quartile, found.highest, found.count) == (4.0, 5.0, 5)


def test_a_log_without_iteration_lines_is_refused(tmp_path):
    with pytest.raises(InputError, match="no iteration line"):
        read_log(log(tmp_path, "elapsed time of nothing"))


def test_a_packed_log_is_refused(tmp_path):
    path = tmp_path / "run.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00data")
    with pytest.raises(InputError, match="packed"):
        read_log(path)


def test_a_missing_log_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "none.log")


def test_lines_are_found_across_the_edges_of_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("steptally.measure.log.CHUNK_BYTES", 100)
    found = read_log(log(tmp_path, *(line(n) for n in range(1, 20))))
    assert iterations(found) == list(range(1, 20))
    assert [line.number for line in found] == list(range(2, 21))
