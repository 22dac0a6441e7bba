"""torch's dtypes under the names that jobs and tallies use."""

from __future__ import annotations

import torch

NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int32: "int32",
    torch.int64: "int64",
}


def dtype_name(dtype: torch.dtype) -> str:
    """`bf16` for `torch.bfloat16`; torch's own name where there is no shorter one."""
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))
