"""The measurements of `steptally calibrate`, on shapes small enough for a test."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from steptally.errors import MissingPartError, RunError
from steptally.run import calibrate, gloo_rate, matmul_rate, memory_rate, sampling

pytest.importorskip("torch")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(matmul_rate, "SIZES_CPU", (16, 32))
    monkeypatch.setattr(memory_rate, "array_bytes", lambda: 1024**2)
    monkeypatch.setattr(sampling, "SHORTEST_SAMPLE_S", 0.0)


def test_every_dtype_is_measured_in_the_three_operand_layouts_of_a_linear_layer(small):
    for dtype in matmul_rate.DTYPES:
        rates = matmul_rate.matmul_rates(dtype, cores=2, on_cuda=False)
        assert {samples.quantity for samples in rates} == {f"matmul {dtype}"}
        assert {samples.case for samples in rates} >= {
            f"n = 16, {layout}" for layout in ("A·Bᵀ", "A·B", "Aᵀ·B")
        }


@pytest.mark.parametrize("layout", matmul_rate.LAYOUTS)
def test_each_layout_multiplies_what_it_says(layout):
    import torch

    generator = torch.Generator().manual_seed(8)
    a, b = (torch.randn(8, 8, generator=generator) / 8**0.5 for _ in range(2))
    expected = {"A·Bᵀ": a @ b.T, "A·B": a @ b, "Aᵀ·B": a.T @ b}[layout]
    assert torch.allclose(matmul_rate._product("fp32", layout, 8, on_cuda=False)(), expected)


def test_a_size_that_would_take_too_long_is_left_out(small, monkeypatch):
    monkeypatch.setattr(matmul_rate, "LONGEST_CALL_S", 1e-12)
    rates = matmul_rate.matmul_rates("fp32", cores=2, on_cuda=False)
    assert [samples.case.split(",")[0] for samples in rates] == ["n = 16"] * 3


def test_rates_count_two_flops_a_multiply_and_add(monkeypatch):
    monkeypatch.setattr(matmul_rate, "SIZES_CPU", (100,))
    monkeypatch.setattr(matmul_rate, "sample_times", lambda *_, **__: [1.0, 2.0])
    rates = matmul_rate.matmul_rates("fp32", cores=2, on_cuda=False)
    # 2 · 100³ FLOPs on each of two cores, in 1 s and in 2 s.
    assert rates[0].samples == (4_000_000.0, 2_000_000.0)


def test_copy_moves_two_arrays_and_triad_three(monkeypatch):
    monkeypatch.setattr(memory_rate, "array_bytes", lambda: 1024**2)
    monkeypatch.setattr(memory_rate, "sample_times", lambda *_, **__: [1.0])
    copy, triad = memory_rate.memory_rates(on_cuda=False)
    assert (copy.samples, triad.samples) == ((2 * 1024**2,), (3 * 1024**2,))


def test_arrays_are_larger_than_the_last_level_cache(monkeypatch):
    monkeypatch.setattr(memory_rate, "last_level_cache_bytes", lambda: 100 * 1024**2)
    monkeypatch.setattr(memory_rate, "memory_bytes", lambda: None)
    assert memory_rate.array_bytes() == 400 * 1024**2


def test_arrays_take_at_most_a_sixteenth_of_the_memory_each(monkeypatch):
    monkeypatch.setattr(memory_rate, "last_level_cache_bytes", lambda: 1024**3)
    monkeypatch.setattr(memory_rate, "memory_bytes", lambda: 16 * 1024**3)
    assert memory_rate.array_bytes() == 1024**3


def test_a_sample_holds_enough_calls_to_be_believed():
    calls_of_samples = []

    def timer(calls):
        calls_of_samples.append(calls)
        return 0.02 * calls

    times = sampling.sample_times(timer, budget_s=60)
    # Doubled until 30 ms are filled: 20, 40 ms; then five samples of 2 calls.
    assert calls_of_samples == [1, 2, 2, 2, 2, 2, 2]
    assert times == pytest.approx([0.02] * 5)


def test_a_spent_budget_still_gives_three_samples():
    assert len(sampling.sample_times(lambda calls: 1.0, budget_s=0)) == 3


def test_cpu_time_leaves_out_what_a_thread_waits():
    with ThreadPoolExecutor(2) as threads:
        timer = sampling.timed_by_cpu([lambda: time.sleep(0.05)] * 2, threads)
        assert timer(2) < 0.05  # two sleeps of 50 ms
        assert sampling.timed_by_clock(lambda: time.sleep(0.05))(2) >= 0.1


@pytest.mark.processes
def test_a_calibration_holds_peaks_bandwidths_and_their_raw_samples(small):
    told = []
    made = calibrate.measure_machine(told.append)
    assert set(made.device.dense_peak_flops_per_s) == {"fp32", "bf16", "fp16"}
    fp32 = made.best_of("matmul fp32")
    assert made.device.dense_peak_flops_per_s["fp32"] == fp32.median
    assert made.device.memory_bandwidth_bytes_per_s == max(
        made.best_of("memory copy").median, made.best_of("memory triad").median
    )
    assert made.quantities()[-3:] == [
        "gloo all_reduce 4 KiB",
        "gloo all_reduce 1 MiB",
        "gloo all_reduce 16 MiB",
    ]
    assert len(made.best_of("gloo all_reduce 16 MiB").samples) == gloo_rate.REPETITIONS
    assert made.device.source.startswith("measured by steptally calibrate on 20")
    assert len(told) == 5


def test_a_gloo_that_fails_is_a_warning_and_the_peaks_are_kept(small, monkeypatch):
    monkeypatch.setattr(gloo_rate, "_measured", failing_gloo)
    made = calibrate.measure_machine()
    assert made.device.dense_peak_flops_per_s["fp32"] > 0
    assert made.warnings[0] == "gloo over loopback failed; rank 0 said: no interface"
    assert not [quantity for quantity in made.quantities() if quantity.startswith("gloo")]


def failing_gloo():
    raise RunError("gloo over loopback failed; rank 0 said: no interface")


def test_without_torch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPartError, match="pip install 'steptally\\[engine\\]'"):
        calibrate.measure_machine()
