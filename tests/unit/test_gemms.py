"""The products of a step: each once, in its phase, as torch itself counts them."""

import json

import pytest

from recordings import recorded_trace
from steptally.measure.gemms import step_gemms
from steptally.trace.kineto import read_kineto

torch = pytest.importorskip("torch")


def recorded(tmp_path, work):
    """The products that a real profile of `work` shows."""
    annotation = torch.profiler.record_function("ProfilerStep#1")
    with torch.profiler.profile(record_shapes=True) as profile, annotation:
        work()
    path = tmp_path / "rank0.json"
    profile.export_chrome_trace(str(path))
    (step,) = step_gemms(read_kineto(path))
    return step


def by_phase(step):
    phases = {row.phase for row in step.rows}
    return {phase: sum(r.flops for r in step.rows if r.phase == phase) for phase in phases}


def linear_layers():
    data = torch.ones(3, 5, 8, requires_grad=True)
    return torch.nn.functional.linear(data, torch.ones(16, 8, requires_grad=True)).sum()


def batched_products():
    data = torch.ones(3, 5, 8, requires_grad=True)
    return torch.einsum("bij,bkj->bik", data, torch.ones(3, 7, 8)).sum()


def convolution():
    # Without groups: of those, torch 2.13's counter counts the weight's gradient too often.
    data, kernel = torch.ones(2, 4, 8, 8, requires_grad=True), torch.ones(6, 4, 3, 3)
    kernel.requires_grad_()
    return torch.nn.functional.conv2d(data, kernel, stride=2, padding=1).sum()


def plain_attention():
    data = torch.ones(2, 3, 5, 8, requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(data, data, data).sum()


@pytest.mark.parametrize("model", [linear_layers, batched_products, convolution, plain_attention])
def test_the_sum_is_that_of_torchs_own_counter(tmp_path, model):
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        model().backward()
    step = recorded(tmp_path, lambda: model().backward())
    assert step.flops == counter.get_total_flops() > 0
    assert step.uncounted == {}


WEIGHT_FLOPS = 2 * 5 * 8 * 8  # of one product of five rows and an 8 x 8 matrix


def two_layers(data):
    first, second = torch.eye(8, requires_grad=True), torch.eye(8, requires_grad=True)
    return (data @ first @ second).sum()


def test_forward_and_backward_are_told_apart(tmp_path):
    data = torch.ones(5, 8, requires_grad=True)
    step = recorded(tmp_path, lambda: two_layers(data).backward())
    assert by_phase(step) == {"forward": 2 * WEIGHT_FLOPS, "backward": 4 * WEIGHT_FLOPS}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_runs_again_is_recompute(tmp_path, reentrant):
    from torch.utils.checkpoint import checkpoint

    weights = [torch.eye(8, requires_grad=True) for _ in range(2)]
    data = torch.ones(5, 8, requires_grad=True)

    def layers(value):
        return torch.relu(torch.relu(value @ weights[0]) @ weights[1])

    step = recorded(
        tmp_path, lambda: checkpoint(layers, data, use_reentrant=reentrant).sum().backward()
    )
    assert by_phase(step) == {
        "forward": 2 * WEIGHT_FLOPS,
        "backward": 4 * WEIGHT_FLOPS,
        "recompute": 2 * WEIGHT_FLOPS,
    }


def test_a_product_at_which_recomputation_stopped_early_never_ran(tmp_path):
    from torch.utils.checkpoint import checkpoint

    weights = [torch.eye(8, requires_grad=True) for _ in range(2)]
    data = torch.ones(5, 8, requires_grad=True)

    def layers(value):  # once the last product has saved its inputs, backward has all it needs
        return torch.relu(value @ weights[0]) @ weights[1]

    step = recorded(
        tmp_path, lambda: checkpoint(layers, data, use_reentrant=False).sum().backward()
    )
    assert by_phase(step)["recompute"] == WEIGHT_FLOPS


def test_products_inside_a_custom_functions_forward_are_recomputed_with_it(tmp_path):
    from torch.utils.checkpoint import checkpoint

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(context, value, weight):
            context.save_for_backward(value, weight)
            return value @ weight

        @staticmethod
        def backward(context, gradient):
            value, weight = context.saved_tensors
            return gradient @ weight.t(), value.t() @ gradient

    weight = torch.eye(8, requires_grad=True)
    data = torch.ones(5, 8, requires_grad=True)
    step = recorded(
        tmp_path,
        lambda: checkpoint(Linear.apply, data, weight, use_reentrant=True).sum().backward(),
    )
    assert by_phase(step) == {
        "forward": WEIGHT_FLOPS,
        "recompute": WEIGHT_FLOPS,
        "backward": 2 * WEIGHT_FLOPS,
    }


def test_an_operator_shown_twice_by_a_dispatch_mode_is_counted_once(tmp_path):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def work():
        with Passing():
            torch.ones(5, 8) @ torch.ones(8, 8)

    step = recorded(tmp_path, work)
    assert [(row.name, row.calls, row.flops) for row in step.rows] == [("mm", 1, WEIGHT_FLOPS)]


def test_products_recorded_without_shapes_are_named_not_counted_as_nothing(tmp_path):
    with torch.profiler.profile() as profile, torch.profiler.record_function("ProfilerStep#1"):
        torch.ones(5, 8) @ torch.ones(8, 8)
    path = tmp_path / "rank0.json"
    profile.export_chrome_trace(str(path))
    (step,) = step_gemms(read_kineto(path))
    assert step.rows == []
    assert step.uncounted == {"aten::mm": 1}


def test_an_operator_whose_products_are_not_known_is_named(tmp_path):
    place = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**place, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9},
        {**place, "cat": "cpu_op", "name": "aten::_weight_int4pack_mm", "ts": 1, "dur": 2},
        {**place, "cat": "cpu_op", "name": "_LayerNormLinear", "ts": 4, "dur": 2},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (step,) = step_gemms(read_kineto(path))
    assert step.rows == []
    assert step.uncounted == {"aten::_weight_int4pack_mm": 1, "_LayerNormLinear": 1}


def test_each_row_counts_operands_and_result_once_a_call():
    (step,) = step_gemms(recorded_trace("tp2_dp2", 0))
    row = next(row for row in step.rows if (row.m, row.n, row.k) == (16, 32, 16))
    assert row.bytes == 4 * (16 * 16 + 16 * 32 + 16 * 32)
    assert (row.dtype, row.rank) == ("fp32", 0)
    assert row.intensity == row.flops / row.calls / row.bytes


def test_the_rows_of_a_megatron_rank_are_the_layers_products():
    (step,) = step_gemms(recorded_trace("tp2_dp2", 0))
    forward = {
        (row.name, row.m, row.n, row.k, row.batch): row.calls
        for row in step.rows
        if row.phase == "forward"
    }
    # 16 tokens; TP2 halves of: QKV 32 -> (4 + 2·2)·8, projection 4·8 -> 32, gated MLP 32 -> 2·64
    # and 64 -> 32, output 32 -> 256; attention of 2 heads of 8 on 16 x 16 pairs. QKV's half and
    # fc2's have one shape.
    assert forward == {
        ("mm", 16, 32, 32, 1): 2,
        ("mm", 16, 32, 16, 1): 1,
        ("mm", 16, 64, 32, 1): 1,
        ("mm", 16, 128, 32, 1): 1,
        ("baddbmm", 16, 16, 8, 2): 1,
        ("bmm", 16, 8, 16, 2): 1,
    }


def test_a_function_that_a_backward_pass_calls_makes_no_recompute(tmp_path):
    class Turned(torch.autograd.Function):  # as Megatron's _AllToAll, it is its own transpose
        @staticmethod
        def forward(context, value, weight):
            context.save_for_backward(weight)
            return value @ weight

        @staticmethod
        def backward(context, gradient):
            (weight,) = context.saved_tensors
            return Turned.apply(gradient, weight.t()), None

    weight = torch.eye(8)
    data = torch.ones(5, 8, requires_grad=True)
    step = recorded(tmp_path, lambda: Turned.apply(data, weight).sum().backward())
    assert by_phase(step) == {"forward": WEIGHT_FLOPS, "backward": WEIGHT_FLOPS}


def test_a_custom_function_that_a_hook_runs_again_is_recompute(tmp_path):
    from torch.utils.checkpoint import checkpoint

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(context, value, weight):
            context.save_for_backward(value, weight)
            return value @ weight

        @staticmethod
        def backward(context, gradient):
            value, weight = context.saved_tensors
            return gradient @ weight.t(), value.t() @ gradient

    weight = torch.eye(8, requires_grad=True)
    data = torch.ones(5, 8, requires_grad=True)

    def layers(value):
        return torch.relu(Linear.apply(torch.relu(value), weight))

    step = recorded(
        tmp_path, lambda: checkpoint(layers, data, use_reentrant=False).sum().backward()
    )
    assert by_phase(step) == {
        "forward": WEIGHT_FLOPS,
        "recompute": WEIGHT_FLOPS,
        "backward": 2 * WEIGHT_FLOPS,
    }
