"""A device's peak is the dense one, and a name means one device or is refused."""

import math

import pytest

from steptally.errors import InputError
from steptally.job.catalog.devices import catalogue, find_device

TERA = 1e12

# Dense fp16 FLOP per clock of one SM or CU, fp32 accumulate (vendors' architecture whitepapers).
# Peak / (units · rate) is then the clock, which no part runs above 2.7 GHz: a figure with sparsity
# in the dense column shows as a clock of 2.8 GHz or more.
FLOPS_PER_CLOCK = {
    "7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 1024, "8.9": 1024, "9.0": 4096,
    "10.0": 8192, "10.3": 8192, "12.0": 1024, "gfx90a": 1024, "gfx942": 2048, "gfx950": 4096,
}  # fmt: skip
# Parts whose fp32-accumulate rate is half of their family's, and H20, cut to about a quarter.
HALF_RATE = {"rtx-3090", "rtx-4090", "rtx-5090", "a10g", "l40", "l20"}
CUT = {"h20-96", "h20-141"}


@pytest.mark.parametrize("device", catalogue().values(), ids=lambda device: device.name)
def test_m097_09_no_dense_figure_is_a_sparse_one(device):
    """M097-09: the dense column of every device holds dense peaks."""
    peak = device.dense_peak_flops_per_s.get("fp16")
    if peak is None or device.multiprocessors is None:
        assert device.name in ("b100", "dgx-spark-gb10")  # no SM count, or no fp16 peak published
        return
    rate = FLOPS_PER_CLOCK[device.compute_capability] / (2 if device.name in HALF_RATE else 1)
    clock_ghz = peak / (device.multiprocessors * rate) / 1e9
    low, high = (0.4, 0.5) if device.name in CUT else (1.2, 2.7)
    assert low < clock_ghz < high


# Figures with sparsity, as the data sheets print them in large type.
@pytest.mark.parametrize(
    ("name", "dtype", "sparse_tflops"),
    [
        ("a100-sxm-80", "bf16", 624),
        ("h100-sxm-80", "bf16", 1979),
        ("h100-pcie-80", "bf16", 1513),
        ("h100-nvl-94", "bf16", 1671),
        ("h200-sxm-141", "fp8", 3958),
        ("l40s", "fp8", 1466),
        ("rtx-6000-ada", "fp8", 1457),
        ("b200-sxm-180", "bf16", 4500),
        ("gb200", "fp4", 20000),
        ("gb300", "bf16", 5000),
        ("mi300x", "bf16", 2614.9),
        ("mi355x", "fp8", 10100),
        # Gains of their own: Blackwell Ultra's fp4 a third, AMD's MX formats and fp32 nothing.
        ("b300-sxm-270", "fp4", 18000),
        ("b300-sxm-270", "fp8", 9000),
        ("gb300", "fp4", 20000),
        ("mi350x", "fp4", 9200),
        ("mi355x", "fp6", 10100),
        ("mi355x", "fp4", 10100),
        ("h100-sxm-80", "fp32", 66.9),
    ],
)
def test_the_published_sparse_peak_is_the_dense_one_times_the_sparsity_factor(
    name, dtype, sparse_tflops
):
    device = find_device(name)
    assert device.dense_peak_flops_per_s[dtype] * device.sparsity_factor(dtype) == pytest.approx(
        sparse_tflops * TERA, rel=0.01
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80"),
        ("NVIDIA H100 PCIe", "h100-pcie-80"),
        ("NVIDIA H100 NVL", "h100-nvl-94"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80"),
        ("A100-80GB-SXM (4x200Gb OPA/node)", "a100-sxm-80"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm-80"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32"),
        ("Tesla T4", "t4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H20", "h20-96"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144"),
        ("NVIDIA B200", "b200-sxm-180"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm-270"),
        ("GB300 NVL72", "gb300"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server"),
        ("NVIDIA GB10", "dgx-spark-gb10"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("h100-sxm", "h100-sxm-80"),
        ("H100SXM5", "h100-sxm-80"),
        ("h100 96gb hbm2e 500w", "h100-sxm-96"),
    ],
)
def test_drivers_names_and_short_names_are_found(name, found):
    assert find_device(name).name == found


def test_m097_04_the_peak_is_that_of_the_selected_device():
    """M097-04: an A100 job on a host that also lists an H100 NVL has 312 TFLOP/s."""
    assert find_device("NVIDIA A100-SXM4-80GB").dense_peak_flops_per_s["bf16"] == 312 * TERA


def test_m097_10_nvidia_h100_alone_is_ambiguous_even_with_96_gib():
    """M097-10: SXM boards with 96 GB exist, so memory does not tell SXM from NVL."""
    for memory_gib in (None, 80, 94, 96):
        with pytest.raises(InputError) as raised:
            find_device("NVIDIA H100", memory_gib)
        for peak in ("989.4", "835.5", "756.5"):
            assert peak in str(raised.value)


def test_m097_11_h200_nvl_is_not_h200_sxm():
    """M097-11: 835.5 dense for NVL, 989 for SXM."""
    assert find_device("NVIDIA H200 NVL").dense_peak_flops_per_s["bf16"] == 835.5 * TERA
    assert find_device("NVIDIA H200").dense_peak_flops_per_s["bf16"] == 989.4 * TERA


def test_m097_13_h100_pcie_is_756_not_1513():
    """M097-13: 1513 is the figure with sparsity."""
    peak = find_device("H100 PCIe").dense_peak_flops_per_s["bf16"]
    assert 756 * TERA <= peak <= 756.5 * TERA


def test_memory_settles_between_variants_of_one_form():
    assert find_device("Tesla V100-SXM2", 31.7).name == "v100-sxm2-32"
    assert find_device("h100-sxm", 95.6).name == "h100-sxm-96"


@pytest.mark.parametrize("name", ["H300", "A1000", "3090 Ti", "Xeon", "x" * 10_000])
def test_an_unknown_device_has_no_peak_and_the_nearest_names_are_given(name):
    with pytest.raises(InputError, match=r"not in the catalogue.*Nearest names"):
        find_device(name)


@pytest.mark.parametrize("name", ["", "  ", "-", "é"])
def test_an_empty_name_is_refused(name):
    with pytest.raises(InputError):
        find_device(name)


@pytest.mark.parametrize("device", catalogue().values(), ids=lambda device: device.name)
def test_every_entry_is_complete_and_found_by_its_own_name_and_title(device):
    assert device.source
    assert device.memory_bytes
    assert device.memory_bandwidth_bytes_per_s
    assert device.link_bandwidth_bytes_per_s
    assert find_device(device.name) is device
    assert all(math.isfinite(peak) and peak > 0 for peak in device.dense_peak_flops_per_s.values())


def test_formats_follow_the_generations():
    assert not find_device("v100-sxm2-16").has_format("bf16")
    assert not find_device("a100-sxm-80").has_format("fp8")
    assert not find_device("h100-sxm-80").has_format("mxfp8")
    assert find_device("b200").has_format("nvfp4")
    assert find_device("mi355x").has_format("mxfp4")
    assert not find_device("mi355x").has_format("nvfp4")


def test_a_device_of_ones_own_comes_from_a_toml_file(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(
        '[my-card]\ntitle = "My card"\nfamily = "mycard"\nform = "PCIe"\narchitecture = "own"\n'
        "peak_tflops = { bf16 = 100 }\nmemory_gib = 24\nmemory_gb_per_s = 500\n"
        'source = "measured here"\n'
    )
    assert find_device(str(path)).dense_peak_flops_per_s["bf16"] == 100 * TERA


def test_a_damaged_device_file_is_refused(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text("[my-card]\ntitle = 3\n")
    with pytest.raises(InputError, match="my-card"):
        find_device(str(path))
