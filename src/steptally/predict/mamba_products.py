"""What a Mamba-2 layer multiplies beside its projections: the convolution and the chunked scan.

The kernels are not GEMMs; they are listed so that a rank's products add up to its executed FLOPs.
Formulas and sources: `predict.mamba_terms`.
"""

from __future__ import annotations

from steptally.job.job import Job
from steptally.predict.mamba_terms import (
    CONVOLUTION_WIDTH,
    SCAN_CHUNK,
    mamba_convolution_channels,
    mamba_heads,
)
from steptally.predict.microbatch import gathered_tokens
from steptally.predict.products import DGRAD, FORWARD, WGRAD, Product


def mamba_products(job: Job) -> list[Product]:
    """Depthwise convolution and scan of one layer and micro-batch; backward is twice forward."""
    return [*_convolution(job), *_scan(job)]


def _convolution(job: Job) -> list[Product]:
    channels = mamba_convolution_channels(job.architecture)
    channels //= job.layout.tensor_model_parallel_size
    tokens = gathered_tokens(job)
    return [
        Product(
            name="mamba.conv1d",
            phase=phase,
            m=tokens,
            n=1,
            k=CONVOLUTION_WIDTH,
            batch=channels,
            calls=1,
            flops=2 * tokens * CONVOLUTION_WIDTH * channels,
            precision="high",
        )
        for phase in (FORWARD, DGRAD, WGRAD)
    ]


def _scan(job: Job) -> list[Product]:
    """C·Bᵀ inside a chunk, its product with x, the state that a chunk leaves, and its use."""
    architecture, tp = job.architecture, job.layout.tensor_model_parallel_size
    heads, head = mamba_heads(architecture) // tp, architecture.mamba_head_dim
    groups, states = architecture.mamba_num_groups // tp, architecture.mamba_state_dim
    tokens = gathered_tokens(job)
    chunks = -(-tokens // SCAN_CHUNK)
    shapes = (
        (SCAN_CHUNK, SCAN_CHUNK, states, groups, 2 * SCAN_CHUNK * states),
        (SCAN_CHUNK, head, SCAN_CHUNK, heads, 2 * SCAN_CHUNK * head),
        (states, head, SCAN_CHUNK, heads, 2 * states * head),
        (SCAN_CHUNK, head, states, heads, 2 * states * head),
    )
    return [
        Product(
            name="mamba.scan",
            phase=phase,
            m=m,
            n=n,
            k=k,
            batch=chunks * copies,
            calls=calls,
            flops=tokens * copies * flops_per_token,
            precision="high",
        )
        for phase, calls in ((FORWARD, 1), (DGRAD, 2))
        for m, n, k, copies, flops_per_token in shapes
    ]
