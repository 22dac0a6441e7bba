"""Public threads about stragglers (cases M108 of ../shared/cases/cases.yaml), answered rightly."""

import numpy as np
import pytest
from tests.unit.stragglers.phase_inputs import iteration_line, phases, range_block, timers
from tests.unit.stragglers.side_file_texts import HEALTHY_QUERY, QUERY

from steptally.measure.log import parse_line
from steptally.measure.stragglers.detector_scores import conclude_from_scores, read_scores
from steptally.measure.stragglers.phase_file import read_phase_table
from steptally.measure.stragglers.series import (
    IterationSeries,
    conclude_from_series,
    series_of_log,
)
from steptally.measure.stragglers.side_files.read import read_side_files
from steptally.measure.stragglers.sources import conclude_from_file
from steptally.measure.stragglers.timer_log import read_timer_log
from steptally.measure.stragglers.timers import conclude_from_phases

# flagos-ai/FlagScale#938: the report of its description, ranks 0 to 5.
FLAGSCALE_REPORT = """\
[default0]:=== Straggler Report at Step 10 ===
[default0]:
[default0]:Section Timings (ms):
[default0]:
[default0]:  optimizer:
[default0]:    Min: 9.17ms, Max: 10.12ms, Avg: 9.55ms, Slowdown: 1.10x
[default0]:    Rank 0: 9.98ms
[default0]:    Rank 1: 10.12ms
[default0]:    Rank 2: 9.46ms
[default0]:    Rank 3: 9.40ms
[default0]:    Rank 4: 9.17ms
[default0]:    Rank 5: 9.58ms
"""


def of_times(values, interval=1):
    return IterationSeries(
        source="train.log",
        iterations=tuple(interval * (at + 1) for at in range(len(values))),
        ms=tuple(float(value) for value in values),
        interval=interval,
    )


def test_m108_02_the_shortest_nccl_time_is_the_straggler():
    # NVIDIA/nccl#893, 4 V100: one GPU is always late, the others wait in NCCL. Not NCCL's fault.
    found = conclude_from_phases(
        phases((0, "nccl", 148.0), (1, "nccl", 151.0), (2, "nccl", 150.0), (3, "nccl", 12.0))
    )
    (row,) = found.verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (3,))
    assert "the one that waits least is waited for" in row.evidence[0]
    assert "clocks and temperature" in row.evidence[2]


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, "healthy"),  # SW power cap at 396 of 400 W and 100 %: ok
        ({"slow": "Active"}, "fault"),
        ({"slow": "Active", "thermal": "Active"}, "fault"),
        ({"slow": "Active", "brake": "Active"}, "fault"),
        ({"power": "240.00"}, "notable"),
    ],
)
def test_m108_03_a_power_cap_at_full_load_is_healthy_and_a_hardware_slowdown_a_fault(
    changes, severity, tmp_path
):
    # mlfoundations/open_clip#703: "Clocks Event Reasons: SW Power Cap active" of nvidia-smi -q.
    path = tmp_path / "query.txt"
    path.write_text(QUERY.format(**{**HEALTHY_QUERY, **changes}))
    assert read_side_files([path]).findings[0].severity == severity


def test_m108_04_a_plain_pytorch_recording_without_megatron_is_accepted():
    # NVIDIA-NeMo/RL#1992 is a wish: its DTensor path has no straggler detection. A table of phases
    # of any loop is what this route takes; nothing in it is Megatron's.
    rows = ["step,rank,phase,s"]
    generator = np.random.default_rng(3)
    for step in range(1, 9):
        for rank in range(4):
            forward = 0.300 * (1.6 if rank == 1 else 1.0)
            wait = 0.020 + (0.180 if rank != 1 else 0.0)
            for phase, seconds in [("fsdp_forward", forward), ("reduce_scatter", wait)]:
                rows.append(f"{step},{rank},{phase},{seconds + generator.normal(0, 0.003):.6f}")
    (row,) = conclude_from_phases(read_phase_table("\n".join(rows), "dtensor.csv")).verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (1,))
    assert row.factor == pytest.approx(1.6, rel=0.03)


def test_m108_06_linear_growth_on_all_ranks_is_a_leak_and_no_straggler():
    # epfLLM/Megatron-LLM#22: 84.6, 142.5, 202.4 s at iterations 10, 15, 20; host memory grows.
    lines = [
        parse_line(iteration_line(iteration, seconds * 1e3))
        for iteration, seconds in [(10, 84.6), (15, 142.5), (20, 202.4)]
    ]
    (row,) = conclude_from_series(series_of_log(lines, "train.log")).verdicts
    assert (row.verdict, row.ranks) == ("not-identifiable", ())
    assert "from 84600.0 ms at iteration 10 to 202400.0 ms at iteration 20" in row.evidence[0]
    assert "a leak" in row.evidence[1]
    assert "not a straggler" in row.evidence[1]


def test_m108_07_every_hundredth_step_is_a_pause_and_manual_gc_is_named():
    # patrick-kidger/equinox#1145, AnswerDotAI/ModernBERT#71: about every 100th step takes 60 s.
    generator = np.random.default_rng(1)
    values = 1000.0 + generator.normal(0, 15.0, 800)
    values[np.arange(99, 800, 100) - generator.integers(0, 2, 8)] += 60_000.0
    (row,) = conclude_from_series(of_times(values)).verdicts
    assert row.verdict == "pause"
    assert "every 100 iterations" in row.evidence[0] or "about every 100" in row.evidence[0]
    assert "garbage collection" in row.evidence[1]
    assert "--manual-gc" in row.evidence[2]


def test_m108_08_slow_phases_of_all_ranks_are_no_ranks_fault():
    # NVIDIA/nccl#883: 5 s per iteration, then phases of an hour that are slower; the network.
    generator = np.random.default_rng(2)
    values = np.concatenate([np.full(300, 5000.0), np.full(150, 7700.0), np.full(300, 5000.0)])
    (row,) = conclude_from_series(of_times(values + generator.normal(0, 60.0, 750))).verdicts
    assert (row.verdict, row.ranks) == ("not-identifiable", ())
    assert "iterations 301 to 450 take 7698.8 ms (1.54x)" in row.evidence[0]
    assert "adaptive routing" in row.evidence[1]


def test_m108_08_a_step_change_of_all_ranks_is_no_ranks_fault():
    # The same thread: 48 GB/s fall to 31 GB/s; 5 s become 7.7 s and stay.
    generator = np.random.default_rng(4)
    values = np.concatenate([np.full(200, 5000.0), np.full(200, 7740.0)])
    (row,) = conclude_from_series(of_times(values + generator.normal(0, 60.0, 400))).verdicts
    assert (row.verdict, row.ranks) == ("not-identifiable", ())
    assert row.evidence[0].startswith("From iteration 201 on every iteration is slower")


def test_m108_09_ten_percent_between_ranks_in_the_optimizer_is_no_straggler():
    # flagos-ai/FlagScale#938 prints "Slowdown: 1.10x": max over min of one short section.
    table = read_timer_log(FLAGSCALE_REPORT.splitlines(), "report")
    assert table.times["ms"].to_list() == [9.98, 10.12, 9.46, 9.4, 9.17, 9.58]
    found = conclude_from_phases(table)
    assert found.verdicts == ()
    # 10.12 − 9.46 = 0.66 ms, 6.5 % of all that is recorded; and the others' own spread (9.17 to
    # 9.98 ms, median deviation 0.12 ms) lets 3.5 · 1.4826 · 0.12 = 0.62 ms happen by noise.
    (note,) = found.notes
    assert note.startswith("no straggler: rank 1 spends 10.12 ms in `optimizer`, its peers 9.46 ms")
    assert "6.5 % of the step of 10.12 ms (the sum of the recorded phases): below 10 %" in note
    assert "0.62 ms could be told from noise" in note


def test_m108_09_the_same_section_is_nothing_of_a_step_of_a_second():
    ranks = [9.98, 10.12, 9.46, 9.4, 9.17, 9.58]
    found = conclude_from_phases(timers({"optimizer": ranks}, step_ms=1000.0))
    assert found.verdicts == ()
    assert "0.1 % of the step of 1000.00 ms" in found.notes[0]


def test_m108_10_the_share_of_batch_generator_is_data_loading():
    # NVIDIA/Megatron-LM#897, Megatron-DeepSpeed#357: batch-generator grows; cause never settled.
    made = [
        {"batch-generator": [60.0 * n] * 4, "forward-compute": [200.0 + 60.0 * n] * 4}
        for n in range(1, 9)
    ]
    found = conclude_from_phases(timers(*made, step_ms=900.0))
    (row,) = found.verdicts
    assert row.verdict == "data-loading"
    assert "270.00 ms on the median rank that loads, 30.0 % of the step" in row.evidence[0]
    assert "grows from 90.00 ms in the first iterations to 450.00 ms in the last" in row.evidence[1]


def test_m108_10_extremes_over_ranks_tell_data_loading_too():
    lines = [iteration_line(1, 1000.0), *range_block({"batch-generator": (310.0, 330.0)})]
    (row,) = conclude_from_phases(read_timer_log(lines, "x")).verdicts
    assert row.verdict == "data-loading"
    assert "31.0 % of the step" in row.evidence[0]


def test_m108_10_a_small_share_of_batch_generator_is_not_data_loading():
    found = conclude_from_phases(timers({"batch-generator": [5.0] * 4}, step_ms=900.0))
    assert found.verdicts == ()
    assert found.notes[0].startswith("data loading does not hold all ranks up")


def test_m108_11_all_scores_nan_means_that_the_detector_saw_no_kernels(tmp_path):
    # NVIDIA-NeMo/Megatron-Bridge#2081: the wrapper was dropped, nothing was instrumented.
    path = tmp_path / "train.log"
    path.write_text(
        "megatron.bridge.NVRxStragglerDetection: GPU relative performance:\n"
        "  Rank=0 Node=22ca9bdcfc9a Score=nan\n"
        "  Rank=1 Node=22ca9bdcfc9a Score=nan\n"
    )
    found = conclude_from_file(path)
    (row,) = found.verdicts
    assert row.verdict == "not-identifiable"
    assert "the detector saw no kernels" in row.evidence[0]
    assert "does not mean that there is no straggler" in row.evidence[0]
    assert found.notes == ()


def test_m108_11_0_95_of_two_ranks_is_not_below_the_threshold():
    # Megatron-Bridge#2114, after the fix.
    text = [
        "megatron.bridge.NVRxStragglerDetection: GPU relative performance:",
        "  Rank=0 Node=22ca9bdcfc9a Score=0.95",
        "  Rank=1 Node=22ca9bdcfc9a Score=1.00",
        "megatron.bridge.NVRxStragglerDetection: GPU individual performance:",
        "  Rank=0 Node=22ca9bdcfc9a Score=0.98",
        "  Rank=1 Node=22ca9bdcfc9a Score=0.99",
    ]
    found = conclude_from_scores(read_scores(text))
    assert found.verdicts == ()
    assert "is 0.95 (rank 0), not below its threshold of 0.7" in found.notes[0]
    assert found.detectable == pytest.approx(1.43, abs=0.01)


def test_m108_12_records_with_start_and_end_of_zero_are_dropped_and_counted():
    # NVIDIA/nvidia-resiliency-ext#115: CUPTI gives 0 and 0 for what it did not collect.
    rows = ["rank,section,start_ns,end_ns"]
    for rank in range(4):
        rows += [f"{rank},forward,1000,101000", f"{rank},forward,0,0"]
    table = read_phase_table("\n".join(rows), "kernels.csv")
    assert table.times["ms"].to_list() == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert table.lost == ("4 records with start and end of 0 were not collected, and are dropped",)
    assert conclude_from_phases(table).lost == table.lost


# traceopt-ai/traceml#253: the culprit has the smallest backward (DDP waits in it), the victim is
# the upper median rank; a cause is named from 80 % of the wait on; 10 % warns, 20 % is critical.
BASE = {"input": 5.0, "h2d": 2.0, "forward": 100.0, "optimizer": 10.0}


def table_of(culprit, backward, iterations=5):
    generator = np.random.default_rng(8)
    rows = ["step,rank,section,ms"]
    for step in range(iterations):
        for rank in range(4):
            own = {**BASE, **culprit} if rank == 2 else BASE
            own = {**own, "backward": backward if rank == 2 else 300.0}
            rows += [f"{step},{rank},{n},{ms + generator.normal(0, 0.5)}" for n, ms in own.items()]
    return read_phase_table("\n".join(rows), "phases.csv")


@pytest.mark.parametrize(
    ("culprit", "backward", "verdict", "severity"),
    [
        ({"input": 105.0}, 200.0, "data-loading", "critical"),
        ({"forward": 200.0}, 200.0, "slow-worker", "critical"),
        ({"h2d": 62.0}, 240.0, "slow-worker", "a warning"),
    ],
)
def test_m108_14_the_smallest_backward_is_the_culprit_and_its_phase_the_cause(
    culprit, backward, verdict, severity
):
    (row,) = conclude_from_phases(table_of(culprit, backward)).verdicts
    assert (row.verdict, row.ranks) == (verdict, (2,))
    assert severity in row.evidence[1]
    assert next(iter(culprit)) in row.evidence[2]


def test_m108_14_below_ten_percent_of_the_step_nobody_is_blamed():
    found = conclude_from_phases(table_of({"input": 35.0}, 270.0))  # 30 of 417 ms: 7.2 %
    assert found.verdicts == ()
    assert "below 10 %" in found.notes[-1]


def test_m108_14_a_cause_that_explains_less_than_eighty_percent_is_not_named():
    (row,) = conclude_from_phases(table_of({"forward": 150.0}, 200.0)).verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (2,))
    assert row.evidence[2].startswith("No cause is named: its recorded phases explain 5")
