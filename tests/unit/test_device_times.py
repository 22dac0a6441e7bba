"""A device's time by step and by process group, on small traces made by hand."""

import random

import pytest

from device_traces import (
    NCCL_KERNEL,
    account,
    copy,
    event,
    kernel,
    microseconds,
    nccl,
    operator,
    step,
)
from steptally.errors import InputError
from steptally.measure.group_axes import JobGroups

SHARES = ("span", "busy", "compute", "communication", "overlap", "exposed", "idle")
TENSOR = ("3", "TENSOR_MODEL_PARALLEL_GROUP")
DATA = ("5", "DATA_PARALLEL_GROUP_WITH_CP")


@pytest.fixture
def measured(tmp_path):
    return lambda *events, **options: account(tmp_path / "rank0.json", *events, **options)


TWO_STEPS = [
    step(1, 0, 50),
    step(2, 50, 100),
    # Launched in step 1, and still running when the host has gone on to step 2.
    kernel("gemm", 10, 30, launched=5),
    nccl(30, 70, launched=20),
    kernel("gemm", 60, 90, launched=55),
    kernel("gemm", 120, 130, launched=95),
]


def test_work_belongs_to_the_step_that_launched_it(measured):
    first, second = measured(*TWO_STEPS).times.steps
    assert microseconds(first, *SHARES) == (60, 60, 20, 40, 0, 40, 0)
    assert microseconds(second, *SHARES) == (70, 40, 40, 0, 0, 0, 30)


def test_the_last_step_is_kept(measured):
    # HolisticTraceAnalysis drops the last ProfilerStep without a word.
    assert [row.step for row in measured(*TWO_STEPS).times.steps] == [1, 2]


def test_the_whole_recording_counts_every_moment_once(measured):
    # compute 10–30, 60–90, 120–130; NCCL 30–70, of which 60–70 is hidden.
    row = measured(*TWO_STEPS).times.recording
    assert microseconds(row, *SHARES) == (120, 90, 60, 40, 10, 30, 30)


def test_work_outside_the_steps_is_shown_as_partial_never_dropped(measured):
    found = measured(
        kernel("gemm", 0, 5, launched=-10),
        step(7, 10, 20),
        kernel("gemm", 12, 18, launched=11),
        kernel("gemm", 24, 28, launched=22),
        step(8, 30, 40),
        kernel("gemm", 32, 39, launched=31),
        kernel("gemm", 50, 60, launched=45),
    ).times
    assert [(row.step, row.compute_ns) for row in found.steps] == [(7, 6_000), (8, 7_000)]
    assert [(row.step, row.partial, row.compute_ns) for row in found.partial] == [
        (6, "before the first recorded step", 5_000),
        (7, "between recorded steps", 4_000),
        (9, "after the last recorded step", 10_000),
    ]
    assert found.recording.compute_ns == 32_000


def test_work_without_a_launch_belongs_to_the_step_in_which_it_starts(measured):
    found = measured(step(1, 0, 50), step(2, 50, 100), kernel("a", 40, 60), kernel("b", 70, 80))
    assert [(row.step, row.compute_ns) for row in found.times.steps] == [(1, 20_000), (2, 10_000)]


def test_chosen_steps_are_all_that_is_accounted_for(measured):
    found = measured(*TWO_STEPS, steps=(2, 2))
    assert [row.step for row in found.times.steps] == [2]
    assert microseconds(found.times.recording, *SHARES) == (70, 40, 40, 0, 0, 0, 30)
    assert [row.count for row in found.kernels] == [2]


def test_steps_that_are_not_there_are_refused(measured):
    with pytest.raises(
        InputError, match=r"asks for steps 8 to 9, but .* has the steps 1–2: choose"
    ):
        measured(*TWO_STEPS, steps=(8, 9))


def test_without_annotations_there_are_no_steps(measured):
    found = measured(kernel("gemm", 0, 5), kernel("add", 6, 9))
    assert found.source.steps == "none"
    assert found.times.steps == found.times.partial == ()


def test_a_step_drawn_on_the_device_serves_where_the_host_has_none(measured):
    # Its own end is of no use: on MI300 it lasts 16 µs. It reaches to the next one.
    drawn = {"process": 0, "thread": 7, "device": 0, "stream": 7}
    found = measured(
        event("gpu_user_annotation", "ProfilerStep#4", 10, 12, **drawn),
        event("gpu_user_annotation", "ProfilerStep#5", 50, 52, **drawn),
        kernel("gemm", 10, 40),
        kernel("gemm", 50, 80),
    )
    assert found.source.steps == "ProfilerStep annotations of the device"
    assert [(row.step, row.compute_ns) for row in found.times.steps] == [(4, 30_000), (5, 30_000)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("iteration 11", "iteration 12"),
        ("train_step_11", "train_step_12"),
        ("[iter 11]", "[iter 12]"),
    ],
)
def test_annotations_that_count_iterations_are_steps(measured, first, second):
    found = measured(
        event("user_annotation", first, 0, 50),
        event("user_annotation", second, 50, 100),
        kernel("gemm", 10, 40, launched=5),
        kernel("gemm", 60, 80, launched=55),
    )
    assert found.source.steps == "annotations that count steps"
    assert [row.step for row in found.times.steps] == [11, 12]


def test_ranges_of_one_name_are_numbered_in_order(measured):
    found = measured(
        event("user_annotation", "train_step", 0, 50),
        event("user_annotation", "train_step", 60, 100),
        event("user_annotation", "stepfather", 0, 100),
        kernel("gemm", 10, 40, launched=5),
        kernel("gemm", 70, 80, launched=65),
    )
    assert [row.step for row in found.times.steps] == [1, 2]


def test_what_is_called_step_alone_is_no_step_of_training(measured):
    # An optimizer's own range, once an iteration: the work of a step is not inside it.
    found = measured(
        event("user_annotation", "step", 40, 50),
        event("user_annotation", "step", 90, 100),
        kernel("gemm", 10, 30, launched=5),
    )
    assert found.source.steps == "none"


def repeated(times, names, pause=30):
    """The same kernels over and over, with a pause before each round."""
    now, events = 0, []
    for _ in range(times):
        now += pause
        for name in names:
            events.append(kernel(name, now, now + 9))
            now += 10
    return events


ROUND = ["embed", *["gemm", "norm", "attention", "mlp"] * 5, "loss", "adam"]


def test_a_sequence_of_kernels_that_repeats_is_a_period(measured):
    # Four rounds of 23 kernels: the layers inside (period 4) do not hold for all of them.
    found = measured(*repeated(4, ROUND))
    assert found.source.steps == "a period of 23 kernels"
    # A step begins after the pause, and ends where the next begins: nothing tells that the last
    # round is whole.
    assert [row.step for row in found.times.steps] == [1, 2, 3]
    assert [row.compute_ns for row in found.times.steps] == [23 * 9_000] * 3
    assert [row.partial for row in found.times.partial] == ["after the last recorded step"]
    assert "whether that is a step, a micro-batch or a layer" in " ".join(found.warnings)


def test_what_does_not_repeat_has_no_period(measured):
    names = random.Random(5).choices([f"kernel{i}" for i in range(31)], k=120)
    assert measured(*repeated(1, names)).source.steps == "none"


def test_one_kernel_over_and_over_is_no_sequence_of_steps(measured):
    assert measured(*repeated(1, ["gemm"] * 60)).source.steps == "none"
    assert measured(*repeated(20, ["gemm", "add", "norm"])).source.steps == "none"


def test_groups_carry_megatrons_names_and_axes(measured):
    row = measured(
        kernel("gemm", 0, 50),
        nccl(10, 30, group=TENSOR, ranks=(0, 1)),
        nccl(40, 90, stream=21, group=DATA, ranks=(0, 2, 4)),
    ).times.recording
    assert [(one.group, one.axis, one.size) for one in row.groups] == [
        (DATA[1], "dp", 3),
        (TENSOR[1], "tp", 2),
    ]
    data, tensor = row.groups
    assert microseconds(data, "communication", "overlap", "exposed") == (50, 10, 40)
    assert microseconds(tensor, "communication", "overlap", "exposed") == (20, 20, 0)


def test_groups_that_communicate_at_once_are_named(measured):
    row = measured(
        nccl(10, 30, group=TENSOR), nccl(20, 60, stream=21, group=DATA), kernel("gemm", 70, 80)
    ).times.recording
    (pair,) = row.pairs
    assert (pair.groups, pair.overlap_ns) == ((DATA[1], TENSOR[1]), 10_000)
    # Exposed together 10 µs: alone 30 and 10.
    assert [one.exposed_alone_ns for one in row.groups] == [30_000, 10_000]


def test_communication_without_a_group_is_unattributed_and_said_so(measured):
    found = measured(nccl(0, 10), kernel("gemm", 20, 30))
    (group,) = found.times.recording.groups
    assert (group.group, group.axis, group.size) == ("unattributed", None, None)
    assert "the trace names no process groups" in " ".join(found.warnings)


def test_a_group_that_only_has_a_number_is_named_by_the_list_of_groups(measured):
    configuration = {
        "distributedInfo": {
            "rank": 0,
            "pg_config": [{"pg_name": "5", "pg_desc": DATA[1], "ranks": [0, 8]}],
        }
    }
    row = measured(nccl(0, 10, group=("5", "undefined"), ranks=(0, 8)), **configuration)
    assert [one.group for one in row.times.recording.groups] == [DATA[1]]


def test_a_job_names_groups_by_their_ranks(measured):
    job = JobGroups(
        source="job",
        names={
            (0, 1): ("TENSOR_MODEL_PARALLEL_GROUP",),
            (0, 2): ("EXPERT_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP"),
        },
    )
    row = measured(
        nccl(0, 10, group=("1", "undefined"), ranks=(1, 0)),
        nccl(20, 30, group=("2", "undefined"), ranks=(0, 2)),
        nccl(40, 50, group=("3", "undefined"), ranks=(0, 7)),
        job=job,
    ).times.recording
    assert [(one.group, one.axis) for one in row.groups] == [
        ("EXPERT_MODEL_PARALLEL_GROUP or DATA_PARALLEL_GROUP_WITH_CP", "ep or dp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("process group 3", None),
    ]


def test_a_shortened_list_of_ranks_still_finds_its_group(measured):
    # torch writes the first 29 ranks of a long list, and the last.
    members = tuple(range(0, 1024, 8))
    job = JobGroups(
        source="job",
        names={
            members: ("DATA_PARALLEL_GROUP_WITH_CP",),
            tuple(range(1, 1024, 8)): ("DATA_PARALLEL_GROUP_WITH_CP",),
            tuple(range(0, 1016, 8)): ("CONTEXT_PARALLEL_GROUP",),
        },
    )
    events = nccl(0, 10, group=("4", "undefined"), ranks=members)
    shortened = ", ".join(map(str, members[:29]))
    events[0]["args"]["Process Group Ranks"] = f"[{shortened}, ..., {members[-1]}]"
    (group,) = measured(events, job=job).times.recording.groups
    assert (group.group, group.axis, group.size) == ("DATA_PARALLEL_GROUP_WITH_CP", "dp", 128)


def test_steps_without_any_work_are_no_account(measured):
    found = measured(step(1, 0, 50))
    assert (found.times.recording, found.times.steps) == (None, ())
    assert "no work was recorded" in found.warnings[0]


def test_copies_are_neither_compute_nor_communication(measured):
    row = measured(kernel("gemm", 0, 10), nccl(20, 60), copy(50, 80)).times.recording
    assert microseconds(row, "busy", "compute", "communication", "exposed") == (70, 10, 40, 40)
    assert microseconds(row, "copies", "copies_overlap") == (30, 10)


def test_a_cpu_operator_with_a_stream_is_no_kernel(measured):
    # One cpu_op of a real B200 trace has "stream": 0; HolisticTraceAnalysis counts its 74 µs.
    found = measured(
        kernel("gemm", 0, 10),
        event("cpu_op", "triton_poi_fused_add_0", 20, 94, stream=0),
        operator("aten::add", 20, 30),
    )
    assert found.times.recording.compute_ns == 10_000
    assert found.source.device_events == 1


def test_ncclDevKernel_is_communication(measured):
    assert NCCL_KERNEL.startswith("ncclDevKernel_")
    row = measured(nccl(0, 137.849), kernel("gemm", 200, 210)).times.recording
    assert row.communication_ns == 137_849


def test_a_negative_duration_is_lost_and_said_so(measured):
    bad = event("kernel", "gemm", 30, 20, process=0, thread=7, device=0, stream=7, correlation=5)
    found = measured(kernel("gemm", 0, 10), bad)
    assert found.times.recording.compute_ns == 10_000
    (losses,) = (row for row in found.trust if row.check == "losses")
    assert (losses.count, losses.verdict) == (1, "downgraded")
    assert "negative duration" in losses.finding


def test_a_thousand_short_kernels_keep_every_nanosecond(measured):
    # 1,000 kernels of 0.7 µs: rounding each to whole µs made HolisticTraceAnalysis say −263 µs.
    found = measured(*[kernel("tiny", i, i + 0.7) for i in range(1000)])
    assert found.times.recording.compute_ns == 700_000
    assert all(row.min_ns == row.max_ns == 700 for row in found.kernels)
