"""Tiles, waves and alignment: numbers from NVIDIA's guide and from public cases."""

import pytest

from steptally.predict.tiling import choose_tiling, misaligned, tile_product


def test_m105_01_expert_product_in_1_3_waves():
    # NVIDIA/Megatron-LM#6454: 6 × 32 = 192 thread blocks of width 128 on 148 SMs, 65 % of 2 waves.
    tiling = tile_product(32 * 16, 768, 1, (16, 128), 148)
    assert tiling.tiles == 192
    assert round(tiling.waves, 3) == 1.297
    assert round(100 * tiling.tail_efficiency) == 65


def test_one_column_more_costs_a_whole_row_of_tiles():
    # DU-09799-001 section 3.1: 256 × 128 tiles, N = 136 needs as many as N = 256.
    narrow, wide = (tile_product(256, n, 1, (256, 128), 108) for n in (136, 256))
    assert narrow.tiles == wide.tiles == 2
    assert narrow.tile_efficiency == 136 / 256


def test_a_wave_more_for_one_tile_halves_the_use_of_both():
    # DU-09799-001 section 3.2: A100 has 108 SMs, so 109 tiles take two waves.
    full, over = (tile_product(256 * tiles, 128, 1, (256, 128), 108) for tiles in (108, 109))
    assert full.tail_efficiency == 1
    assert over.tail_efficiency == 109 / 216


def test_batched_products_fill_waves_together():
    assert tile_product(128, 128, 216, (128, 128), 108).waves == 2


def test_large_tiles_where_they_fill_the_device_and_small_ones_where_not():
    assert choose_tiling(4096, 4096, 1, 108).tile in ((256, 128), (128, 256))
    assert choose_tiling(512, 512, 1, 108).tile == (64, 64)


def test_of_two_equal_tiles_the_fuller_is_taken():
    assert choose_tiling(128, 256 * 200, 1, 108).tile == (128, 256)
    assert choose_tiling(256 * 200, 128, 1, 108).tile == (256, 128)


@pytest.mark.parametrize(
    ("dtype", "capability", "multiple"),
    [
        # DU-09799-001 section 2.2: 16 bytes, on A100 (8.0) 128.
        ("tf32", "9.0", 4),
        ("fp16", "7.0", 8),
        ("bf16", "9.0", 8),
        ("fp8", "9.0", 16),
        ("fp16", "8.0", 64),
        # Blocks of 32 elements share a scale (OCP MX 1.0).
        ("mxfp8", "10.0", 32),
        ("fp4", "10.0", 32),
    ],
)
def test_dimensions_are_asked_to_be_multiples_of_16_bytes(dtype, capability, multiple):
    assert not misaligned(multiple, 2 * multiple, 3 * multiple, dtype, capability)
    found = misaligned(multiple, 2 * multiple + 1, 3 * multiple, dtype, capability)
    assert found == f"n {2 * multiple + 1} (multiple of {multiple})"


def test_fp32_has_no_tensor_cores_to_align_for():
    assert misaligned(3, 5, 7, "fp32", "9.0") == ""
