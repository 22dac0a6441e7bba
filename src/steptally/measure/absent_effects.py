"""Settings of a job that should show in its trace, and do not: the flag on, the effect absent."""

from __future__ import annotations

import re
from collections.abc import Iterator

from steptally.job import Job
from steptally.tally import KernelRow, Tally, TimeRow

# With less of an axis's communication hidden than this, nothing hides it.
HIDDEN_FROM = 0.01
# What runs where tensor parallelism overlaps its collectives with products: Transformer Engine's
# userbuffers, NVLink multicast, torch's fused operators on symmetric memory.
_OVERLAPPED_PRODUCTS = re.compile(
    r"userbuffers|multimem|fused_all_gather_matmul|fused_matmul_reduce_scatter|symm_mem",
    re.IGNORECASE,
)
# Megatron-Core's setting → the axis whose communication it hides, and what keeps it from doing so.
_HIDES = {
    "overlap_grad_reduce": ("dp", "CUDA_DEVICE_MAX_CONNECTIONS=1 keeps launches in one order"),
    "overlap_moe_expert_parallel_comm": (
        "ep",
        "it needs CUDA_DEVICE_MAX_CONNECTIONS well above 1 (32 is usual)",
    ),
}


def absent_effects(job: Job, tally: Tally) -> Iterator[str]:
    """One sentence for each setting that the trace contradicts; nothing where it cannot tell."""
    layout, recipe = job.layout, job.recipe
    kernels = [row for row in tally.accounts.get("kernels", ()) if isinstance(row, KernelRow)]
    if not kernels:
        return
    overlapped = any(_OVERLAPPED_PRODUCTS.search(row.name) for row in kernels)
    if recipe.tp_comm_overlap and layout.tensor_model_parallel_size > 1 and not overlapped:
        yield (
            "tp_comm_overlap is on, its effect is absent: no kernel of userbuffers or symmetric "
            "memory is in the trace; look for its warning in the log"
        )
    for setting, (axis, cause) in _HIDES.items():
        communication_ns, hidden_ns = _of_axis(tally, axis)
        if not getattr(recipe, setting) or not communication_ns:
            continue
        if hidden_ns < HIDDEN_FROM * communication_ns:
            yield (
                f"{setting} is on, its effect is absent: compute hides {hidden_ns / 1e6:.1f} of "
                f"{communication_ns / 1e6:.1f} ms of {axis}'s communication; {cause}"
            )


def _of_axis(tally: Tally, axis: str) -> tuple[int, int]:
    """Communication of the groups of this axis alone, and what of it compute hides, in ns."""
    groups = [
        group
        for row in tally.accounts.get("recording", ())
        if isinstance(row, TimeRow)
        for group in row.groups
        if group.axis == axis
    ]
    return (
        sum(group.communication_ns for group in groups),
        sum(group.overlap_ns for group in groups),
    )
