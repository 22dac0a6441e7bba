"""What an idle device waited for: the worked example of docs/formulas/gaps.md, and odd cases."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from device_traces import (
    account,
    call,
    copy,
    event,
    kernel,
    microseconds,
    nccl,
    read_trace,
    step,
)
from steptally.measure.trace_account import TraceOptions, account_for_trace
from steptally.trace.kinds import load_rules
from steptally.trace.schema import EVENTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "formulas" / "gaps.md"
SHARES = ("host", "communication", "dependency", "turnaround", "no_work", "untold", "idle")

# In the order of the table in the document.
WORKED_EXAMPLE = [
    kernel("gemm", 10, 30, launched=0),
    kernel("add", 31, 40, launched=2),
    nccl(40, 70, launched=4),
    kernel("gemm", 72, 80, launched=6),
    call("cudaDeviceSynchronize", 9, 81),
    kernel("add", 95, 100, launched=90),
    kernel("gemm", 108, 120, launched=103),
    kernel("add", 125, 130),
    kernel("add", 133, 135, launched=106),
    kernel("gemm", 140, 150, stream=21, launched=109),
]


@pytest.fixture
def gaps(tmp_path):
    return lambda *events: account(tmp_path / "rank0.json", *events).gaps


def test_the_worked_example_divides_as_documented(gaps):
    row = gaps(*WORKED_EXAMPLE)
    assert microseconds(row, *SHARES) == (13, 2, 9, 4, 10, 5, 39)
    assert microseconds(row, "span", "recoverable") == (140, 8)
    assert (row.gaps, row.kernels, row.short_kernels) == (7, 8, 5)
    assert row.short_kernels_ns == 29_000  # 9 + 8 + 5 + 5 + 2


def test_the_document_shows_what_the_code_computes(gaps):
    row = gaps(*WORKED_EXAMPLE)
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, number in zip(SHARES, microseconds(row, *SHARES), strict=True):
        assert f"| {name.replace('_', ' ')} | {number:.0f} |" in text
    assert f"= {100 * row.host_ns / row.span_ns:.1f} %" in text
    assert f"at most {row.recoverable_ns / 1000:.0f} µs" in text


def test_a_launch_after_the_device_became_idle_is_waiting_for_the_host(gaps):
    row = gaps(kernel("gemm", 5, 10, launched=0), kernel("gemm", 55, 60, launched=50))
    assert microseconds(row, "idle", "host", "recoverable") == (45, 45, 45)


def test_a_kernel_queued_behind_nothing_visible_depends_on_something(gaps):
    # Queued at 2, its stream free at 10: a wait for an event of another device, say.
    row = gaps(kernel("gemm", 5, 10, launched=0), kernel("gemm", 500, 510, launched=2))
    assert microseconds(row, "dependency", "turnaround", "host") == (490, 0, 0)


def test_time_in_a_collective_of_the_host_is_waiting_for_communication(gaps):
    # gloo works from 12 to 30 for a barrier; the next launch is called at 34.
    row = gaps(
        kernel("gemm", 5, 10, launched=0),
        event("user_annotation", "gloo:barrier", 12, 30, thread=44),
        kernel("gemm", 40, 50, launched=34),
    )
    assert microseconds(row, "idle", "communication", "host") == (30, 18, 12)


def test_a_thread_that_launches_nothing_may_wait_for_the_device(gaps):
    # A watchdog inside cudaEventSynchronize says nothing about the thread that launches.
    row = gaps(
        kernel("gemm", 5, 10, launched=0),
        call("cudaEventSynchronize", 1, 20, thread=77),
        kernel("gemm", 40, 50, launched=34),
    )
    assert microseconds(row, "host", "no_work") == (30, 0)


def test_a_synchronising_copy_drains_the_queue(gaps):
    row = gaps(
        kernel("gemm", 5, 10, launched=0),
        copy(10, 12, launch="hipMemcpyWithStream", launched=3, took=10),
        kernel("gemm", 40, 50, launched=34),
    )
    assert microseconds(row, "host", "no_work") == (6, 22)


def test_a_graph_cannot_hold_a_copy_an_allocation_or_two_steps(gaps):
    waits = [kernel("gemm", 5, 10, launched=0), kernel("gemm", 55, 60, launched=50)]
    assert gaps(*waits).recoverable_ns == 45_000
    assert gaps(*waits, call("cudaMalloc", 20, 30)).recoverable_ns == 0
    assert gaps(*waits, call("cudaMalloc", 20, 30, thread=5)).recoverable_ns == 45_000
    assert gaps(*waits, step(1, 0, 40), step(2, 40, 70)).recoverable_ns == 0
    assert gaps(waits[0], copy(55, 60, launched=50)).recoverable_ns == 0


def replay(number, launched, *runs):
    """A graph launched at `launched`, of which these kernels were recorded."""
    kernels = [
        event(
            "kernel", name, start, end, process=0, thread=7,
            device=0, stream=7, correlation=number,
        )
        for name, start, end in runs
    ]  # fmt: skip
    return [call("cudaGraphLaunch", launched, launched + 3, correlation=number), *kernels]


def test_the_kernels_of_a_replay_share_its_launch_and_wait_for_no_host(gaps):
    row = gaps(replay(9001, 0, ("a", 10, 20), ("b", 21, 30), ("c", 32, 40)))
    assert microseconds(row, "idle", "dependency", "untold") == (3, 3, 0)
    assert (row.graph_launches, row.unseen_replays, row.recoverable_ns) == (1, 0, 0)


def test_a_silence_inside_a_replay_is_no_idle_time_that_anyone_can_tell(gaps):
    row = gaps(replay(9002, 0, ("a", 10, 20), ("b", 520, 530)))
    assert microseconds(row, "idle", "dependency", "untold") == (500, 0, 500)
    assert row.recoverable_ns is None


def test_a_replay_that_is_recorded_as_one_whole_has_no_silence(tmp_path):
    # As Nsight Systems records with --cuda-graph-trace=graph: busy, of unknown content.
    trace = read_trace(
        tmp_path / "rank0.json",
        kernel("gemm", 5, 10, launched=0),
        kernel("whole", 60, 90, launched=2, launch="cudaGraphLaunch"),
    )
    is_whole = pl.col("name") == "whole"
    kind = pl.when(is_whole).then(pl.lit("graph")).otherwise("kind").cast(EVENTS["kind"])
    trace = dataclasses.replace(trace, events=trace.events.with_columns(kind=kind))
    found = account_for_trace(trace, 0, TraceOptions(rules=load_rules()))
    assert microseconds(found.gaps, "idle", "dependency", "untold") == (50, 50, 0)
    assert microseconds(found.times.recording, "busy", "graph", "compute") == (35, 30, 5)


def test_a_replay_without_any_recorded_kernel_is_not_read_as_idle(tmp_path):
    found = account(
        tmp_path / "rank0.json",
        kernel("gemm", 5, 10, launched=0),
        replay(9003, 6),
        kernel("gemm", 900, 910, launched=12),
    )
    assert microseconds(found.gaps, "idle", "untold", "dependency") == (890, 890, 0)
    assert (found.gaps.graph_launches, found.gaps.unseen_replays) == (1, 1)
    (row,) = (row for row in found.trust if row.check == "graph replays")
    assert row.verdict == "downgraded"
    assert "idle (an upper bound)" in row.affects


def test_a_launch_that_is_recorded_after_its_kernel_counts_as_its_start(gaps):
    # kineto#1380: the call seems to begin 3 µs after its kernel.
    row = gaps(kernel("gemm", 5, 10, launched=0), kernel("gemm", 20, 30, launched=23))
    assert microseconds(row, "idle", "host") == (10, 10)


def test_the_same_correlation_of_another_trace_is_not_a_launch_of_zero(gaps):
    # ROCm writes correlation 0 where it knows no launch: a call of that number is another's.
    row = gaps(
        kernel("gemm", 5, 10, launched=0),
        call("hipLaunchKernel", 1, 2, correlation=0),
        event("kernel", "k", 40, 50, process=0, thread=7, device=0, stream=7, correlation=0),
    )
    assert microseconds(row, "idle", "untold") == (30, 30)
