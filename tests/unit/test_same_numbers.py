"""The same work recorded by two profilers has the same account: one definition of every share."""

import pytest

from device_traces import NCCL_KERNEL, copy, kernel, nccl, step, write_trace
from nsys_files import COPY, KERNEL, LAUNCH, RANGE, write_export
from steptally.measure.trace_account import TraceOptions, account_for_trace
from steptally.trace.kinds import load_rules
from steptally.trace.read import read_traces

# Work of a device: kind, stream, launched, start, end; in µs. Two iterations of 100 µs.
GEMM, ALL_REDUCE = "void gemm_kernel<float>(float*)", NCCL_KERNEL
WORK = [
    (GEMM, 7, 2, 10, 30),
    (ALL_REDUCE, 20, 5, 25, 50),
    ("copy", 13, 8, 60, 70),
    (GEMM, 7, 102, 110, 140),
    (ALL_REDUCE, 20, 104, 150, 170),
    (GEMM, 7, 106, 172, 180),
]


def kineto(path):
    events = [step(1, 0, 100), step(2, 100, 200)]
    for name, stream, launched, start, end in WORK:
        if name == "copy":
            events.append(copy(start, end, "Memcpy DtoD (Device -> Device)", launched=launched))
        elif name == ALL_REDUCE:
            events.append(nccl(start, end, launched=launched))
        else:
            shape = {"grid": [108, 2, 1], "block": [256, 1, 1]}
            events.append(kernel(name, start, end, stream=stream, launched=launched, **shape))
    return write_trace(path / "rank0.json", *events)


def nsight(path):
    kernels, copies, calls = [], [], []
    for number, (name, stream, launched, start, end) in enumerate(WORK, start=11):
        times = {"start": 1000 * start, "end": 1000 * end, "correlationId": number}
        calls.append({**LAUNCH, "start": 1000 * launched, "end": 1000 * launched + 1000,
                      "correlationId": number})  # fmt: skip
        if name == "copy":
            copies.append({**COPY, **times, "streamId": stream})
        else:
            kernels.append({**KERNEL, **times, "streamId": stream,
                            "demangledName": 1 if name == GEMM else 2})  # fmt: skip
    ranges = [
        {**RANGE, "start": at, "end": at + 100_000, "text": f"iteration {number}", "textId": None}
        for number, at in ((1, 0), (2, 100_000))
    ]
    return write_export(
        path / "rank0.sqlite", kernel=kernels, memcpy=copies, runtime=calls, nvtx=ranges
    )


@pytest.fixture
def account(tmp_path):
    def read(write):
        (source,) = read_traces([write(tmp_path)])
        return account_for_trace(source.read(), 0, TraceOptions(rules=load_rules()))

    return read


def test_every_share_of_every_step_is_the_same(account):
    by_kineto, by_nsight = account(kineto), account(nsight)
    assert by_kineto.times == by_nsight.times
    assert [row.step for row in by_nsight.times.steps] == [1, 2]
    # compute 10–30, 110–140, 172–180; communication 25–50, 150–170, of which 25–30 is hidden.
    whole = by_nsight.times.recording
    assert (whole.compute_ns, whole.communication_ns, whole.overlap_ns) == (58_000, 45_000, 5_000)


def test_gaps_and_kernels_are_the_same(account):
    by_kineto, by_nsight = account(kineto), account(nsight)
    assert by_kineto.gaps == by_nsight.gaps
    durations = [
        {(row.family, row.count, row.total_ns, row.median_ns) for row in one.kernels}
        for one in (by_kineto, by_nsight)
    ]
    assert durations[0] == durations[1]


def test_what_makes_the_steps_is_named_for_each(account):
    assert account(kineto).source.steps == "ProfilerStep annotations"
    assert account(nsight).source.steps in ("NVTX ranges", "annotations that count steps")
