"""The products of each operator, from shapes as the profiler writes them."""

import json

import pytest

from steptally.measure.products import (
    hides_products,
    is_product,
    looks_like_product,
    products_of,
)


def shapes_of(name, dimensions, values=()):
    found = products_of(name, json.dumps(dimensions), json.dumps(values) if values else None)
    return [(one.m, one.n, one.k, one.batch, one.flops) for one in found]


@pytest.mark.parametrize(
    ("name", "dimensions", "expected"),
    [
        ("aten::mm", [[4, 8], [8, 16]], (4, 16, 8, 1)),
        ("aten::addmm", [[16], [4, 8], [8, 16], [], []], (4, 16, 8, 1)),
        ("aten::addmm_", [[4, 16], [4, 8], [8, 16], [], []], (4, 16, 8, 1)),
        ("aten::bmm", [[3, 4, 8], [3, 8, 16]], (4, 16, 8, 3)),
        ("aten::baddbmm", [[3, 4, 16], [3, 4, 8], [3, 8, 16], [], []], (4, 16, 8, 3)),
        ("aten::addbmm", [[4, 16], [3, 4, 8], [3, 8, 16], [], []], (4, 16, 8, 3)),
        ("aten::mv", [[4, 8], [8]], (4, 1, 8, 1)),
        ("aten::addmv_", [[4], [4, 8], [8], [], []], (4, 1, 8, 1)),
        ("aten::dot", [[8], [8]], (1, 1, 8, 1)),
        ("aten::_scaled_mm", [[4, 8], [8, 16], [], [], [], [], []], (4, 16, 8, 1)),
        ("aten::_int_mm", [[4, 8], [8, 16]], (4, 16, 8, 1)),
        # Five rows of two groups against each group's own matrix: a row meets one of them.
        ("aten::_grouped_mm", [[5, 8], [2, 8, 16], [2], [], []], (5, 16, 8, 1)),
        # The gradient of those matrices: k is what is split into groups.
        ("aten::_grouped_mm", [[8, 5], [5, 16], [2], [], []], (8, 16, 5, 1)),
        ("aten::_grouped_mm", [[2, 4, 8], [2, 8, 16], [], [], []], (4, 16, 8, 2)),
        ("aten::mm", [[0, 8], [8, 16]], (0, 16, 8, 1)),
    ],
)
def test_a_product_costs_two_flops_for_each_of_its_terms(name, dimensions, expected):
    m, n, k, batch = expected
    assert shapes_of(name, dimensions) == [(m, n, k, batch, 2 * m * n * k * batch)]


CONVOLUTION = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"]


def test_a_convolution_is_a_product_of_patches_and_kernels():
    # 2 images of 4 channels and 8 x 8; 6 kernels of 3 x 3 in 2 groups, stride 2, padding 1:
    # 4 x 4 positions an image, each a dot product over 2 channels x 9.
    found = shapes_of("aten::convolution", [[2, 4, 8, 8], [6, 2, 3, 3], [6]], CONVOLUTION)
    assert found == [(2 * 16, 3, 18, 2, 2 * 32 * 3 * 18 * 2)]


def test_a_transposed_convolution_has_a_product_for_each_input_position():
    values = [*CONVOLUTION[:6], "True", "[0, 0]", "1"]
    found = shapes_of("aten::convolution", [[2, 4, 8, 8], [4, 6, 3, 3], [6]], values)
    assert [flops for *_, flops in found] == [2 * 2 * 64 * 4 * 6 * 9]


@pytest.mark.parametrize(
    ("mask", "products"), [("[True, True, True]", 2), ("[False, True, False]", 1)]
)
def test_a_convolutions_backward_has_a_product_for_each_gradient_asked_for(mask, products):
    dimensions = [[2, 6, 4, 4], [2, 4, 8, 8], [6, 2, 3, 3], []]
    values = ["", "", "", "[0]", *CONVOLUTION[3:8], "2", mask]
    found = shapes_of("aten::convolution_backward", dimensions, values)
    assert [flops for *_, flops in found] == [2 * 32 * 3 * 18 * 2] * products


QUERY, KEY = [2, 3, 5, 8], [2, 3, 5, 8]


@pytest.mark.parametrize(("causal", "pairs"), [("False", 25), ("True", 15)])
def test_fused_attention_is_two_products_over_the_visible_pairs(causal, pairs):
    found = shapes_of(
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        [QUERY, KEY, KEY, [], [], [], []],
        ["", "", "", "0.", causal, "", ""],
    )
    assert sum(flops for *_, flops in found) == 2 * (2 * pairs * 8 * 2 * 3)


def test_the_backward_of_fused_attention_is_five_products():
    found = shapes_of(
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        [QUERY, QUERY, KEY, KEY, QUERY, [2, 5, 3], [], [], [], []],
        ["", "", "", "", "", "", "0.", "True", "", ""],
    )
    assert sum(flops for *_, flops in found) == 5 * (2 * 15 * 8 * 2 * 3)


def test_a_causal_mask_is_aligned_at_the_first_query_and_key():
    # Queries 0 to 4 see 1, 2, 3, 3, 3 of three keys.
    found = shapes_of(
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        [[1, 1, 5, 8], [1, 1, 3, 8], [1, 1, 3, 8]],
        ["", "", "", "0.", "True"],
    )
    assert [flops for *_, flops in found] == [2 * 12 * 8] * 2


@pytest.mark.parametrize(
    "dimensions",
    [None, "[]", "[[4, 8]]", "[[4, 8], [7, 16]]", '[["a"], ["b"]]', "[[], []]", "nonsense"],
)
def test_shapes_that_make_no_product_make_none(dimensions):
    assert products_of("aten::mm", dimensions, None) is None


@pytest.mark.parametrize("name", ["aten::linear", "aten::_sparse_mm", "aten::lstm"])
def test_operators_that_may_multiply_matrices_are_known_by_their_name(name):
    assert looks_like_product(name)
    assert not is_product(name)


@pytest.mark.parametrize("name", ["aten::cummax", "aten::lgamma", "aten::add", "aten::merge"])
def test_a_name_that_only_resembles_a_product_is_none(name):
    assert not looks_like_product(name)


@pytest.mark.parametrize(
    ("name", "hides"),
    [
        ("_LayerNormLinear", True),
        ("_GroupedLinearBackward", True),
        ("FlashAttnFunc", True),
        ("FusedAttnFuncBackward", True),
        ("LinearWithGradAccumulationAndAsyncCommunication", False),
        ("MmBackward0", False),
    ],
)
def test_functions_that_hide_their_products_are_known_by_their_name(name, hides):
    assert hides_products(name) == hides
