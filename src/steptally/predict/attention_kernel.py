"""Which attention kernel a job runs: it decides how many products are executed, on which pairs."""

from __future__ import annotations

from steptally.job import Job

UNFUSED, FLASH = "unfused", "flash"


def attention_kernel(job: Job) -> str:
    """`unfused` (the full square is computed and kept) or `flash` (tiles of the causal part).

    Megatron-Core's local spec always runs its unfused `DotProductAttention`, whatever
    `attention_backend` says. Transformer Engine runs what `attention_backend` names; its `fused`
    (cuDNN) kernel does the same products as `flash`, and for `auto` flash is assumed.
    """
    recipe = job.recipe
    if recipe.transformer_impl == "local" or recipe.attention_backend in ("unfused", "local"):
        return UNFUSED
    return FLASH


def attention_kernel_assumption(job: Job) -> str | None:
    """The sentence to print where the kernel had to be assumed; None where it is stated."""
    recipe = job.recipe
    if recipe.transformer_impl == "local" or recipe.attention_backend != "auto":
        return None
    return (
        "attention_backend is auto: flash (or cuDNN's fused) attention is assumed for the executed "
        "FLOPs; with --set attention_backend=unfused the full square is counted."
    )
