"""What bounds a product, on devices whose numbers are round."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.job.device import Device
from steptally.predict.roofline import bound_product, product_dtype

# 100 TFLOP/s and 1 TB/s: a ridge at 100 FLOP/byte.
DEVICE = Device(
    name="round",
    vendor="none",
    source="made up for this test",
    dense_peak_flops_per_s={"bf16": 1e14},
    memory_bytes=2**30,
    memory_bandwidth_bytes_per_s=1e12,
    multiprocessors=100,
)


def bound(m, n, k, **others):
    size = 2 * (m * k + k * n + m * n)
    return bound_product(
        DEVICE, m=m, n=n, batch=1, flops=2 * m * n * k, size_bytes=size, dtype="bf16", **others
    )


def test_a_large_square_is_bound_by_compute():
    # 256 × 128 tiles: 10 × 20 = 200, so two full waves.
    found = bound(2560, 2560, 4096)
    assert found.bound == "compute"
    assert found.efficiency == pytest.approx(1)
    assert found.seconds == pytest.approx(2 * 2560 * 2560 * 4096 / 1e14)


def test_a_partly_filled_last_wave_is_lost():
    found = bound(2560, 2560 + 128, 4096)
    assert found.efficiency == pytest.approx(210 / 300)


def test_few_rows_are_bound_by_memory():
    found = bound(64, 12800, 12800)
    assert found.bound == "memory"
    assert found.seconds == pytest.approx(2 * (64 * 12800 * 2 + 12800 * 12800) / 1e12)


def test_a_tiny_product_is_bound_by_its_launch_and_the_threshold_is_the_callers():
    assert bound(64, 64, 64).bound == "launch"
    assert bound(64, 64, 64, launch_s=1e-9).bound != "launch"


def test_fused_attention_has_no_tiles_of_its_own_here():
    assert bound(2560, 2560, 4096, fused=True).tiling is None


def test_a_device_without_the_format_is_refused_by_name():
    with pytest.raises(InputError, match="round has no dense fp8 peak"):
        bound_product(DEVICE, m=1, n=1, batch=1, flops=2, size_bytes=6, dtype="fp8")


@pytest.mark.parametrize(
    ("settings", "precision", "phase", "dtype"),
    [
        ({"fp8": "hybrid"}, "linear", "forward", "fp8"),
        ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, "linear", "forward", "mxfp8"),
        ({"fp8": "hybrid"}, "high", "forward", "bf16"),
        ({"fp8": "hybrid", "transformer_impl": "local"}, "linear", "forward", "bf16"),
        ({}, "linear", "forward", "bf16"),
        ({}, "router", "forward", "bf16"),
        ({"moe_router_dtype": "fp32"}, "router", "forward", "bf16"),
        ({"moe_router_dtype": "fp32"}, "router", "wgrad", "fp32"),
        ({"moe_router_dtype": "fp32", "transformer_impl": "local"}, "router", "forward", "fp32"),
        ({"moe_router_dtype": "fp64"}, "router", "recompute", "fp64"),
    ],
)
def test_the_dtype_of_operands_is_that_of_the_recipe_and_the_layer(
    settings, precision, phase, dtype
):
    job = job_from_settings(
        {
            "num_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "seq_length": 32,
            "vocab_size": 128,
            "bf16": True,
            **settings,
        }
    )
    assert product_dtype(job, precision, phase) == dtype
