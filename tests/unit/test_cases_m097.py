"""Public threads about MFU (cases M097 of ../shared/cases/cases.yaml), with the right answers."""

import pytest

from steptally.cli.throughput import Measured, throughput
from steptally.errors import InputError
from steptally.job import read_job
from steptally.job.catalog.devices import catalogue, find_device
from steptally.measure.log import parse_line
from steptally.measure.log_series import throughput_accumulates
from steptally.predict.conventions import EXACT_CAUSAL, find_convention
from steptally.predict.utilization import device_peak, rebased


def mfu(model, overrides=(), convention=EXACT_CAUSAL, **measured):
    return throughput(read_job(model, overrides), convention, None, Measured(**measured))


def test_m097_01_the_sparse_peak_is_named_and_the_dense_one_taken():
    # NVIDIA/Megatron-LM#1565: 420 TFLOP/s on H200, divided by 1979: 420/989.4 = 42.45 %.
    found = mfu("qwen2.5-32b", tflops_per_device=420.0, device="NVIDIA H200", peak_tflops=1979.0)
    assert 0.424 <= found.figures["mfu"].value <= 0.425
    assert "peak given is the sparse number" in found.warnings[0]


def test_m097_03_tokens_per_second_give_the_readmes_mfu_with_its_full_attention():
    # foundation-model-stack/fms-fsdp#89: 7B, 9600 tokens/s/GPU on H100; 46 % in the README, never
    # the 24 % of the sparse peak.
    speed = {"tokens_per_s_per_device": 9600.0, "device": "h100-sxm-80"}
    full = mfu("llama-2-7b", convention=find_convention("full-attention"), **speed)
    assert 0.44 <= full.figures["mfu"].value <= 0.49
    assert 0.40 <= mfu("llama-2-7b", **speed).figures["mfu"].value <= 0.44


def test_m097_04_the_peak_is_that_of_the_named_device():
    # pytorch/torchtitan#4800: the host also held an H100 NVL.
    assert device_peak(find_device("NVIDIA A100-SXM4-80GB"), "bf16").flops_per_s == 312e12


def test_m097_06_an_mfu_over_a_wrong_peak_is_put_right():
    # AMD-AGI/Primus#772: 563 % with A100's 312 TFLOP/s on an MI355X of 2500: 70.3 %.
    peak = device_peak(find_device("MI355X"), "bf16")
    assert rebased(5.63, 312e12, peak) == pytest.approx(0.703, abs=0.001)
    found = mfu("llama-3-8b", mfu=5.63, peak_tflops=312.0, device="MI355X")
    assert found.figures["mfu"].value == pytest.approx(0.703, abs=0.001)


@pytest.mark.parametrize(("printed", "told"), [(563.0, False), (5.63, True)])
def test_m097_06_a_printed_mfu_is_a_percentage_or_a_share(printed, told):
    found = mfu("llama-3-8b", mfu=printed, peak_tflops=312.0, device="MI355X")
    assert found.figures["mfu"].value == pytest.approx(0.703, abs=0.001)
    assert any("taken as a share, 563 %" in warning for warning in found.warnings) == told


def test_an_mfu_of_40_is_40_percent():
    printed = {"peak_tflops": 989.4, "device": "h100-sxm-80"}
    for value in (0.4, 40.0):
        assert mfu("llama-3-8b", mfu=value, **printed).figures["mfu"].value == pytest.approx(0.4)
    # No share of 5.63 is possible there: 5,570 TFLOP/s.
    assert mfu("llama-3-8b", mfu=5.63, **printed).figures["mfu"].value == pytest.approx(0.0563)


def test_m097_09_no_peak_of_the_catalogue_is_a_sparse_one():
    # pytorch/torchtitan#1393: B200's datasheet figure of 4.5 PFLOP/s is with 2:4 sparsity.
    assert device_peak(find_device("B200"), "bf16").flops_per_s == pytest.approx(2.25e15, rel=0.01)
    for device in catalogue().values():
        if device.sparsity_factor("bf16") > 1 and {"bf16", "fp8"} <= set(
            device.dense_peak_flops_per_s
        ):
            peaks = device.dense_peak_flops_per_s
            assert peaks["fp8"] / peaks["bf16"] == pytest.approx(2.0, rel=0.03), device.name


def test_m097_10_a_bare_h100_is_ambiguous_whatever_its_memory():
    # pytorch/torchtitan#554: SXM boards with 96 GB exist.
    with pytest.raises(InputError) as raised:
        find_device("NVIDIA H100", memory_gib=96)
    for words in ("989.4", "835.5", "756.5"):
        assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("NVIDIA H200 NVL", 835.5), ("H100 PCIe", 756.5)],
    ids=["M097-11", "M097-13"],
)
def test_m097_11_13_boards_of_one_family_have_their_own_dense_peaks(name, tflops):
    assert device_peak(find_device(name), "bf16").flops_per_s == tflops * 1e12


def test_m097_14_a_step_time_is_of_all_devices():
    # huggingface/blog#1649: 500 steps of 16 sequences in 13.5 h on 16 A100: 2.8 %, not 45.5 %.
    layout = ["seq_length=2048", "global_batch_size=16", "world_size=16"]
    found = mfu(
        "llama-2-70b",
        layout,
        convention=find_convention("6n"),
        step_time_s=13.5 * 3600 / 500,
        device="a100-sxm-80",
    )
    assert found.figures["mfu"].value == pytest.approx(0.028, abs=0.0005)


def test_m097_19_throughput_that_grows_with_the_iteration_is_an_accumulated_count():
    # NVIDIA/Megatron-LM#1755, #2128: FLOPs of all intervals over the time of one.
    line = "iteration {0}/ 500 | elapsed time per iteration (ms): 1000.0 | TFLOPs: {1}.0 |"
    growing = [parse_line(line.format(n, 300 * n)) for n in range(10, 110, 10)]
    steady = [parse_line(line.format(n, 300 + n % 7)) for n in range(10, 110, 10)]
    assert throughput_accumulates(growing)
    assert not throughput_accumulates(steady)
