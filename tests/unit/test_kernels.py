"""Kernels by name and family, what shapes tell of them, fusion chains and contention."""

import dataclasses
from pathlib import Path

import pytest

from device_traces import account, event, kernel, nccl, operator, step
from steptally.job.device import Device
from steptally.measure.kernel_merge import KernelMerge
from steptally.measure.kernels import on_device
from steptally.report.kernel_names import short_kernel

DOCUMENT = Path(__file__).parents[2] / "docs" / "formulas" / "overlap.md"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
BF16 = ["c10::BFloat16", "c10::BFloat16"]


@pytest.fixture
def measured(tmp_path):
    return lambda *events, **options: account(tmp_path / "rank0.json", *events, **options)


def test_kernels_are_counted_by_name_the_longest_first(measured):
    found = measured(
        kernel(GEMM, 0, 10), kernel(GEMM, 10, 30), kernel(GEMM, 40, 52), kernel(ADD, 60, 64)
    )
    gemm, add = found.kernels
    assert (gemm.name, gemm.family, gemm.count, gemm.total_ns) == (GEMM, "gemm", 3, 42_000)
    assert (gemm.median_ns, gemm.min_ns, gemm.max_ns) == (12_000, 10_000, 20_000)
    assert gemm.share == pytest.approx(42 / 46)
    assert (add.family, add.count) == ("elementwise", 1)
    assert [(row.family, row.total_ns) for row in found.families] == [
        ("gemm", 42_000),
        ("elementwise", 4_000),
    ]


def matmul(at, *kernels, shapes=((4, 8), (8, 16))):
    """aten::mm from `at` on for 10 µs, around the launches of kernels (start, end, name)."""
    launched = [
        kernel(name, start, end, launched=at + 1 + i, took=0.5)
        for i, (start, end, name) in enumerate(kernels)
    ]
    return [
        *operator("aten::mm", at, at + 10, [list(shape) for shape in shapes], BF16),
        *[one for pair in launched for one in pair],
    ]


def test_flops_and_bytes_come_from_the_operator_that_launched_the_kernel(measured):
    # [4,8] · [8,16]: 2·4·8·16 = 1,024 FLOPs; (32 + 128 + 64) elements of 2 bytes = 448 bytes.
    (row,) = measured(matmul(0, (20, 24, GEMM)), matmul(30, (50, 54, GEMM))).kernels
    assert (row.count, row.shaped, row.flops, row.bytes, row.dtype) == (2, 2, 2048, 896, "bf16")
    assert row.flops_per_s == pytest.approx(2048 / 8e-6)
    assert row.intensity == pytest.approx(1024 / 448)


def test_a_kernel_outside_every_operator_has_no_flops(measured):
    (row,) = measured(matmul(0, (20, 24, GEMM)), kernel(GEMM, 60, 64, launched=15)).kernels
    assert (row.count, row.shaped, row.shaped_ns, row.flops) == (2, 1, 4_000, 1024)


def test_the_products_of_one_operator_are_divided_among_its_kernels(measured):
    # A split product: 1,024 FLOPs over 6 µs and 2 µs; the transpose before it multiplies nothing.
    parts = ((20, 26, "gemm_part"), (26, 28, "gemm_rest"), (28, 40, "transpose_copy"))
    rows = {row.name: row.flops for row in measured(matmul(0, *parts)).kernels}
    assert rows == {"gemm_part": 768, "gemm_rest": 256, "transpose_copy": None}


DEVICE = Device(name="toy", dense_peak_flops_per_s={"bf16": 1e9}, memory_bandwidth_bytes_per_s=1e8)


def test_the_roofline_tells_what_bounds_a_kernel(measured):
    # Intensity 2.29 FLOP/byte; the ridge of the toy device is 10: memory-bound, roof 0.229e9.
    (row,), refusals = on_device(measured(matmul(0, (20, 30, GEMM))).kernels, DEVICE)
    assert row.flops_per_s == pytest.approx(1.024e8)
    assert (row.bound, refusals) == ("memory", [])
    assert row.peak_share == pytest.approx(0.1024)
    assert row.roof_share == pytest.approx(1.024e8 / (1024 / 448 * 1e8))


def test_a_kernel_that_moves_tensors_has_bytes_and_a_rate(measured):
    # add reads 2 · 32 elements of 2 bytes and writes 32: 192 bytes in 4 µs, 48 % of 1e8 byte/s.
    found = measured(shaped("aten::add", 0, [[4, 8], [4, 8]], ADD))
    (row,), _ = on_device(found.kernels, DEVICE)
    assert (row.shaped, row.flops, row.bytes) == (1, None, 192)
    assert row.bytes_per_s == pytest.approx(4.8e7)
    assert (row.bound, row.roof_share, row.peak_share) == ("memory", pytest.approx(0.48), None)


def test_a_copy_does_not_read_what_it_writes(measured):
    (row,) = measured(shaped("aten::copy_", 0, [[4, 8], [4, 8]], "direct_copy_kernel")).kernels
    assert row.bytes == 2 * 32 * 2


def test_a_rate_above_the_roof_of_memory_is_the_caches(measured):
    found = measured(
        *operator("aten::add", 0, 8, [[64, 64]], ["float"]), kernel(ADD, 9, 10, launched=1)
    )
    (row,), refusals = on_device(found.kernels, DEVICE)
    assert (row.bound, refusals) == ("cache", [])


def test_a_rate_above_the_peak_is_refused(measured):
    (row,), refusals = on_device(measured(matmul(0, (20, 20.5, GEMM))).kernels, DEVICE)
    assert (row.peak_share, row.bound) == (None, None)
    assert "205 % of the bf16 peak of toy is impossible" in refusals[0]


def test_kernels_of_ranks_are_merged_without_keeping_each(measured):
    rows = measured(kernel(GEMM, 0, 10), kernel(GEMM, 10, 30)).kernels
    merge = KernelMerge()
    for factor in (1, 3, 2):
        merge.add(dataclasses.replace(row, median_ns=row.median_ns * factor) for row in rows)
    (row,) = merge.rows()
    assert (row.rank, row.count, row.total_ns, row.share) == (None, 6, 90_000, 1.0)
    assert row.median_ns == 2 * rows[0].median_ns


def test_names_are_shortened_to_what_people_call_them():
    assert short_kernel(ADD) == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    assert short_kernel("void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm_nt>(Params)") == (
        "cutlass_80_tensorop_bf16_gemm_nt"
    )
    assert short_kernel("triton_poi_fused_add_0") == "triton_poi_fused_add_0"


def test_neighbouring_memory_bound_kernels_are_a_chain(measured):
    found = measured(
        step(1, 0, 100),
        step(2, 100, 200),
        *[kernel(name, at, at + 5, launched=at - 5) for at, name in ((10, ADD), (20, "rms_norm"))],
        kernel(GEMM, 30, 40, launched=25),  # ends the chain
        kernel(ADD, 50, 55, launched=45),  # alone, before another step begins
        *[
            kernel(name, at, at + 6, launched=at - 5)
            for at, name in ((110, ADD), (120, "rms_norm"))
        ],
        kernel(ADD, 130, 135, stream=9, launched=125),  # on a stream of its own
    )
    (row,) = found.fusion
    assert (row.chain, row.count, row.total_ns) == ((ADD, "rms_norm"), 2, 22_000)
    assert row.saved_bytes is None  # no shapes are recorded


def shaped(name, at, dimensions, *names):
    """An operator from `at` on for 8 µs, and kernels that run after it."""
    types = ["c10::BFloat16"] * len(dimensions)
    launched = [
        kernel(kernel_name, at + 10 + 5 * i, at + 14 + 5 * i, launched=at + 1 + i)
        for i, kernel_name in enumerate(names)
    ]
    return [
        *operator(name, at, at + 8, dimensions, types),
        *(one for pair in launched for one in pair),
    ]


def test_fusion_saves_the_tensor_between_two_kernels_twice(measured):
    # add writes 4·8 elements of 2 bytes, which the multiplication reads: 2 · 64 bytes a run.
    rounds = [
        [
            shaped("aten::add", at, [[4, 8], [4, 8]], ADD),
            shaped("aten::mul", at + 20, [[4, 8], [1]], "mul_elementwise"),
            kernel(GEMM, at + 40, at + 45, launched=at + 35),
        ]
        for at in (0, 100, 200)
    ]
    (row,) = measured(*[part for one in rounds for part in one]).fusion
    assert (row.chain, row.count) == ((ADD, "mul_elementwise"), 3)
    assert row.saved_bytes == 3 * 2 * 64


def test_kernels_whose_tensors_do_not_fit_are_no_chain(measured):
    found = measured(
        shaped("aten::add", 0, [[4, 8], [4, 8]], ADD),
        shaped("aten::mul", 20, [[5, 5], [1]], "mul_elementwise"),
    )
    assert found.fusion == ()


def test_between_kernels_of_one_operator_no_tensor_is_known(measured):
    (row,) = measured(shaped("aten::sum", 0, [[4, 8]], "reduce_part", "reduce_rest")).fusion
    assert row.saved_bytes is None


ALONE, UNDER = (10, 10, 10, 11, 10), (12, 13, 12, 12, 12)


def contended(alone=ALONE, under=UNDER, shape="[8,1,1]"):
    """The same GEMM alone, then under NCCL from the first to the last."""
    now, events = 0, []
    for duration in alone:
        events.append(kernel(GEMM, now, now + duration, grid=[8, 1, 1], block=[128, 1, 1]))
        now += duration
    begin = now
    for duration in under:
        events.append(kernel(GEMM, now, now + duration, grid=[8, 1, 1], block=[128, 1, 1]))
        now += duration
    return [*events, nccl(begin, now)]


def test_the_contention_factor_compares_the_same_kernel_both_ways(measured):
    found = measured(*contended()).contention
    (row,) = found.rows
    assert (row.launch_shape, row.overlapped, row.alone) == ("[8,1,1],[128,1,1]", 5, 5)
    assert (row.overlapped_median_ns, row.alone_median_ns, row.factor) == (12_000, 10_000, 1.2)
    # 2 + 3 + 2 + 2 + 2 µs longer; 61 µs of communication hidden.
    gain = found.net_gain
    assert (gain.hidden_ns, gain.lengthened_ns, gain.net_gain_ns) == (61_000, 11_000, 50_000)
    assert (gain.factor, gain.covered_share) == (pytest.approx(1.2), 1.0)


def test_the_document_shows_this_example(measured):
    gain = measured(*contended()).contention.net_gain
    text = DOCUMENT.read_text(encoding="utf-8")
    assert f"contention factor is 12 / 10 = {gain.factor:.1f}" in text
    hidden, lengthened, net = (
        number // 1000 for number in (gain.hidden_ns, gain.lengthened_ns, gain.net_gain_ns)
    )
    assert f"net gain {hidden} − {lengthened} = {net} µs" in text


def test_too_few_runs_on_either_side_are_refused(measured):
    found = measured(*contended(alone=ALONE[:2])).contention
    assert (found.rows, found.net_gain) == ((), None)
    assert "3 runs under communication and 3 alone" in found.refusal


def test_kernels_of_another_launch_shape_are_not_compared(measured):
    events = contended()
    for one in events[:5]:
        one[0]["args"]["grid"] = [16, 1, 1]
    assert measured(*events).contention.rows == ()


def test_without_grids_nothing_is_compared(measured):
    found = measured(kernel(GEMM, 0, 10), nccl(0, 10)).contention
    assert "does not tell kernels' grids" in found.refusal


def test_without_communication_contention_is_not_applicable(measured):
    assert "not applicable" in measured(kernel(GEMM, 0, 10)).contention.refusal


def test_an_operator_of_another_thread_is_not_the_launcher(measured):
    (row,) = measured(
        *operator("aten::mm", 0, 10, [[4, 8], [8, 16]], BF16, thread=44),
        kernel(GEMM, 20, 24, launched=1),
        event("cpu_op", "aten::mm", 0, 10),
    ).kernels
    assert row.flops is None
