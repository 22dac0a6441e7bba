"""Bytes of an element, by dtype; and which dtype Megatron-LM gives to what."""

from __future__ import annotations

from collections.abc import Mapping

from steptally.job.job import Job

ELEMENT_BITS: Mapping[str, int] = {
    "fp4": 4,
    "bool": 8,
    "fp8": 8,
    "mxfp8": 8,
    "bf16": 16,
    "fp16": 16,
    "fp32": 32,
    "fp64": 64,
    "int64": 64,
}


# Whole bytes, for the dtypes that have them.
ELEMENT_BYTES: Mapping[str, int] = {
    dtype: bits // 8 for dtype, bits in ELEMENT_BITS.items() if bits % 8 == 0
}


def size_bytes(elements: int, dtype: str) -> int:
    """Bytes of a tensor; scales of block-scaled formats are not counted.

    >>> size_bytes(3, "bf16")
    6
    """
    return -(-elements * ELEMENT_BITS[dtype] // 8)


def gradient_dtype(job: Job) -> str:
    """The dtype of main gradients and of their reduction over data parallel ranks.

    fp32 where `accumulate_allreduce_grads_in_fp32` says so, else that of the parameters. For bf16
    Megatron-LM's `validate_args` turns the flag on unless `--grad-reduce-in-bf16` is given or
    `--main-grads-dtype` is another; `job.derive` does alike.
    """
    recipe = job.recipe
    return "fp32" if recipe.accumulate_allreduce_grads_in_fp32 else recipe.params_dtype


def uses_transformer_engine(job: Job) -> bool:
    """Whether layers are Transformer Engine's modules rather than Megatron-Core's own."""
    return job.recipe.transformer_impl == "transformer_engine"
