"""Public threads about overlap and CUDA graphs that a trace answers (M101, M102, M103 of
../shared/cases/cases.yaml); each test carries its case's id.
"""

import pytest

from device_traces import NCCL_KERNEL, account, call, event, kernel, microseconds, nccl, step
from steptally.job import read_job
from steptally.measure.absent_effects import absent_effects
from steptally.measure.trace_tally import TraceMerge, trace_tally

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
TENSOR = ("3", "TENSOR_MODEL_PARALLEL_GROUP")
DATA = ("5", "DATA_PARALLEL_GROUP_WITH_CP")


@pytest.fixture
def measured(tmp_path):
    return lambda *events, **options: account(tmp_path / "rank0.json", *events, **options)


def tally_of(found):
    merge = TraceMerge()
    merge.add(found)
    return trace_tally(merge)


def test_m101_08_overlap_is_worth_what_it_hides_less_what_it_slows(measured):
    # NVIDIA/TransformerEngine#737: a chunked matmul under an all-reduce gains nothing. Here each of
    # 6 GEMMs takes 18 µs under it and 12 alone: of 108 µs hidden, 36 are paid back.
    grid = {"grid": [132, 1, 1], "block": [384, 1, 1]}
    alone = [kernel(GEMM, 12 * i, 12 * i + 12, **grid) for i in range(6)]
    under = [kernel(GEMM, 100 + 18 * i, 118 + 18 * i, **grid) for i in range(6)]
    found = measured(*alone, *under, nccl(100, 208))
    gain = found.contention.net_gain
    assert gain.factor == pytest.approx(1.5)
    assert (gain.hidden_ns, gain.lengthened_ns, gain.net_gain_ns) == (108_000, 36_000, 72_000)


def test_m101_13_a_flag_without_effect_is_named(measured):
    # pytorch/torchtitan#3869: the flag is on, the pattern is not replaced, and nobody says so.
    plain = measured(kernel(GEMM, 0, 10), nccl(20, 30, group=TENSOR))
    job = read_job(
        "llama-3-8b",
        ["tensor_model_parallel_size=2", "sequence_parallel=true", "tp_comm_overlap=true"],
    )
    (told,) = absent_effects(job, tally_of(plain))
    assert "tp_comm_overlap is on, its effect is absent" in told
    fused = measured(kernel(GEMM, 0, 10), kernel("userbuffers_fp16_sum_inplace_gpu_rr_rs", 5, 15))
    assert list(absent_effects(job, tally_of(fused))) == []


def test_m102_01_gradients_that_nothing_hides_are_told_with_the_usual_cause(measured):
    # NVIDIA/Megatron-LM#1468: --overlap-grad-reduce, CUDA_DEVICE_MAX_CONNECTIONS=1, no overlap.
    job = read_job("llama-3-8b", ["overlap_grad_reduce=true"])
    exposed = measured(kernel(GEMM, 0, 10), nccl(10, 40, group=DATA))
    (told,) = absent_effects(job, tally_of(exposed))
    assert "overlap_grad_reduce is on, its effect is absent" in told
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in told
    hidden = measured(kernel(GEMM, 0, 30), nccl(10, 40, group=DATA))
    assert list(absent_effects(job, tally_of(hidden))) == []


def test_m102_10_the_three_shares_sum_to_the_step_and_stream_seconds_do_not(measured):
    # marin-community/marin#7668, in ms: exclusive communication 48.090, compute 5.329, stall 8.360
    # of a step of 61.779; kernels 45.888 + 13.732 = 59.620 run on two streams at once.
    ms = 1000
    send_recv = nccl(5.329 * ms, (5.329 + 45.888) * ms)
    end = 5.329 + 48.090
    all_gather = nccl((end - 13.732) * ms, end * ms, stream=21)
    found = measured(
        step(1, -5, 62 * ms),
        kernel(GEMM, 0, 5.329 * ms, launched=-2),
        send_recv,
        all_gather,
        kernel("tail", 61.779 * ms - 0.001, 61.779 * ms, launched=61 * ms),
    )
    (row,) = found.times.steps
    assert microseconds(row, "span", "exposed") == (61_779, 48_090)
    assert row.compute_ns + row.exposed_ns + row.idle_ns == row.span_ns
    (kernels,) = (one for one in found.kernels if one.family == "communication")
    assert kernels.total_ns == 59_620_000 > row.communication_ns


def test_m102_13_and_15_device_kernels_of_nccl_are_communication(measured):
    # HolisticTraceAnalysis#122, #208, #241, #360: 137,849 µs, counted as compute or lost.
    found = measured(nccl(0, 137_849))
    assert NCCL_KERNEL.startswith("ncclDevKernel_AllReduce_Sum_")
    assert found.times.recording.communication_ns == 137_849_000
    assert found.times.recording.compute_ns == 0


def test_m102_14_synchronisation_on_the_device_is_no_compute(measured):
    # HolisticTraceAnalysis#162: "Context Sync" over NCCL was overlap.
    sync = event("cuda_sync", "Context Sync", 0, 100, process=0, thread=7, device=0, stream=7)
    row = measured(nccl(0, 100), sync).times.recording
    assert microseconds(row, "communication", "compute", "overlap") == (100, 0, 0)


def test_m102_17_a_kernel_before_its_launch_is_clamped_and_told(measured):
    # pytorch/kineto#1380: no launch latency is negative.
    found = measured(kernel(GEMM, 0, 5, launched=-3), kernel(GEMM, 50, 60, launched=54))
    assert microseconds(found.gaps, "idle", "host", "dependency") == (45, 45, 0)
    (row,) = (row for row in found.trust if row.check == "starts before its launch")
    assert (row.count, row.duration_ns) == (1, 4_000)


def test_m102_18_nccl_without_group_information_is_not_attributed(measured):
    # pytorch/pytorch#131462: an older schema. TP or DP is not guessed.
    (group,) = measured(nccl(0, 10)).times.recording.groups
    assert (group.group, group.axis) == ("unattributed", None)


def test_m103_04_where_the_host_is_not_waited_for_a_graph_gains_nothing(measured):
    # NVIDIA-NeMo/Megatron-Bridge#3868: a valid capture, slightly slower than eager.
    busy = [kernel(GEMM, 100 * i, 100 * i + 99, launched=i) for i in range(50)]
    tally = tally_of(measured(*busy))
    assert tally.summary["graph_recoverable_share"].value == 0
    assert tally.summary["graph_speedup_max"].value == 1


def test_m103_05_a_step_that_captures_is_no_step_to_measure(measured):
    # NVIDIA-NeMo/Megatron-Bridge#682: iteration 1 holds a capture of 58 s.
    found = measured(
        step(1, 0, 60),
        step(2, 60, 90),
        call("cudaStreamEndCapture", 40, 50),
        kernel(GEMM, 5, 10, launched=2),
        kernel(GEMM, 70, 80, launched=65),
    )
    (row,) = (row for row in found.trust if row.check == "graph captures")
    assert row.verdict == "downgraded"
    assert "captured in step 1: leave that out with --steps" in row.finding


@pytest.mark.parametrize(("batch", "speedup"), [(8, 5.08), (96, 1.011)])
def test_m103_10_the_gain_of_a_graph_is_the_share_spent_waiting_for_the_host(
    measured, batch, speedup
):
    # fangwei123456/spikingjelly#740: 5.08 times at batch 8, 1.011 times at batch 96. Kernels whose
    # launches leave the device idle for 1 − 1/speedup of the time bound the gain at the speed-up.
    span, kernels = 100_000, 50
    work = span / kernels / speedup
    events = [
        kernel(GEMM, at, at + work, launched=at - 0.1 * (span / kernels - work), took=0.001)
        for at in (span / kernels * i for i in range(kernels))
    ]
    bound = tally_of(measured(*events)).summary["graph_speedup_max"].value
    assert bound == pytest.approx(speedup, rel=0.02), f"batch {batch}"
