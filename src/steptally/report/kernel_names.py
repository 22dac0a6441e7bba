"""Kernels' names for people: what the function is called, and what it applies."""

from __future__ import annotations

import re

from steptally.report.quantity import printable

_APPLIES = re.compile(r"\b(\w*Functor\w*|\w+_kernel_cuda|\w+Op)\b")
_IN_CUTLASS = re.compile(r"Kernel2?<(cutlass\w+|\w*(?:gemm|conv)\w*)")


def short_kernel(name: str, longest: int = 60) -> str:
    """A kernel's name without namespaces, template and call arguments.

    >>> short_kernel("void at::native::vectorized_elementwise_kernel<4, at::native::"
    ...              "CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, float)")
    'vectorized_elementwise_kernel<CUDAFunctor_add>'
    """
    inside = _IN_CUTLASS.search(name)
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    short = head.rsplit("::", 1)[-1].strip() or plain
    applied = _APPLIES.search(plain[len(head) :])
    if inside:
        short = inside.group(1)
    elif applied and applied.group(1) != short:
        short = f"{short}<{applied.group(1)}>"
    short = printable(short)
    return short if len(short) <= longest else f"{short[: longest - 1]}…"
