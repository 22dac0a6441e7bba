"""An event is what its category says; its name decides only within a category."""

import pytest

from steptally.trace.kinds import is_known, kind_of, step_number


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        # NCCL before and after 2.19, RCCL and others, as their traces spell them.
        ("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "communication"),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("kernel", "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("Kernel", "volta_sgemm_128x64_nn", "compute"),
        # HTA counts this as neither (HolisticTraceAnalysis PR #162): the word Sync is no sign.
        ("kernel", "SyncBatchNormForwardKernel", "compute"),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", "copy"),
        ("gpu_memset", "Memset (Device)", "memset"),
        ("gpu_user_annotation", "nccl:all_reduce", "device_annotation"),
        ("cuda_sync", "Context Sync", "device_sync"),
        ("cuda_runtime", "cudaLaunchKernel", "launch"),
        ("cpu_op", "aten::mm", "operator"),
        ("Operator", "aten::mm", "operator"),
        ("cpu_op", "ncclKernel_look_alike", "operator"),
        ("cpu_op", "c10d::allreduce_", "issue"),
        ("cpu_op", "record_param_comms", "issue"),
        ("cpu_op", "_c10d_functional::wait_tensor", "wait"),
        ("cpu_op", "steptally::wait", "wait"),
        ("user_annotation", "steptally::wait", "wait"),
        ("cpu_op", "steptally::collective", "collective"),
        ("user_annotation", "gloo:all_reduce", "transfer"),
        ("user_annotation", "ProfilerStep#7", "step"),
        ("cpu_op", "ProfilerStep#7", "step"),
        ("gpu_user_annotation", "ProfilerStep#7", "device_annotation"),
        ("cpu_op", "PythonDispatchMode", "instrument"),
        ("ac2g", "ac2g", None),
        ("python_function", "train.py(1): main", None),
        (None, "process_name", None),
    ],
)  # fmt: skip
def test_the_kind_of_an_event(category, name, kind):
    assert kind_of(category, name) == kind


def test_a_category_nobody_knows_is_told_apart_from_one_left_out_on_purpose():
    assert is_known("python_function")
    assert not is_known("quantum_kernel")


@pytest.mark.parametrize(
    ("name", "number"),
    [("ProfilerStep#12", 12), ("ProfilerStep# 3", 3), ("ProfilerStep", None), ("Step#4", None)],
)
def test_the_number_of_a_step_is_in_its_name(name, number):
    assert step_number(name) == number
