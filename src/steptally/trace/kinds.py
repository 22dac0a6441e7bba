"""What a recorded event is, from its category first and its name second.

Never from the presence of a `stream`: some profilers give a CPU operator one. Names follow torch's
profiler (Kineto, 2021 to 2026), NVIDIA and AMD, and steptally's own recorder.
"""

from __future__ import annotations

import re

TAG = "steptally::collective"
WAIT = "steptally::wait"

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)$")
_COMMUNICATION_KERNEL = re.compile("nccl|rccl|msccl|hccl", re.IGNORECASE)

_PRODUCT = re.compile("mm|mv|ger|matmul|dot|conv|att|gemm|linear|outer|einsum|lstm|gru|rnn")

_DEVICE_CATEGORIES = {
    "kernel": "compute",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "memset",
    "memset": "memset",
    "gpu_user_annotation": "device_annotation",
    "cuda_sync": "device_sync",
    "overhead": "instrument",
}
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime")
_OPERATOR_CATEGORIES = ("cpu_op", "operator", "user_annotation")

# Recorded, and of no account: flow arrows, Python frames, the profiler's own spans.
_LEFT_OUT = frozenset(
    ("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "python_function", "trace")
)


def kind_of(category: str | None, name: str) -> str | None:
    """One of `schema.KINDS`, or None for what is no interval of anyone's work."""
    category = (category or "").lower()
    if category in _OPERATOR_CATEGORIES:
        return _host_kind(category, name)
    if category in _LAUNCH_CATEGORIES:
        return "launch"
    kind = _DEVICE_CATEGORIES.get(category)
    if kind == "compute" and _COMMUNICATION_KERNEL.search(name):
        return "communication"
    return kind


def keeps_arguments(name: str) -> bool:
    """Whether an operator's arguments are worth decoding: matrix products for their shapes,
    autograd's nodes and custom functions for the number that links the two.
    """
    return not name.startswith("aten::") or _PRODUCT.search(name) is not None


def is_known(category: str | None) -> bool:
    """Whether a category is one that this steptally knows, counted or deliberately left out."""
    category = (category or "").lower()
    counted = category in _OPERATOR_CATEGORIES or category in _LAUNCH_CATEGORIES
    return counted or category in _DEVICE_CATEGORIES or category in _LEFT_OUT


def step_number(name: str) -> int | None:
    """The number of a `ProfilerStep#<n>` annotation, else None."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


def _host_kind(category: str, name: str) -> str:
    if name == TAG:
        return "collective"
    if name == WAIT:
        return "wait"
    if name.startswith("gloo:"):
        return "transfer"
    if name.startswith("ProfilerStep") and step_number(name) is not None:
        return "step"
    if category == "user_annotation":
        return "annotation"
    if name == "_c10d_functional::wait_tensor":
        return "wait"
    if name.startswith(("c10d::", "_c10d_functional::")) or name == "record_param_comms":
        return "issue"
    # Bookkeeping of a dispatch mode (the recorder's own) and of record_function.
    if name == "PythonDispatchMode" or name.startswith("profiler::"):
        return "instrument"
    return "operator"
