"""The family of a kernel from its name, until `trace.kinds.Rules` takes over (removed then)."""

from __future__ import annotations

import re
from collections.abc import Callable

Families = Callable[[str], str]
_FAMILIES = (
    ("attention", re.compile(r"flash|fmha|attention|attn", re.I)),
    ("gemm", re.compile(r"gemm|cutlass|cublas|xmma|scudnn|conv|wgrad|dgrad|winograd|Cijk", re.I)),
    ("norm", re.compile(r"norm|bn_fw|bn_bw|rms", re.I)),
    ("reduction", re.compile(r"reduce|softmax|scan", re.I)),
    ("copy", re.compile(r"copy|cat|transpose|nchwToNhwc|permute", re.I)),
    ("elementwise", re.compile(r"elementwise|multi_tensor|triton|fill", re.I)),
)


def family_of(name: str) -> str:
    """One of gemm, attention, norm, reduction, copy, elementwise, other."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name)), "other")
