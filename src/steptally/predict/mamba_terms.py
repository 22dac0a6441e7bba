"""The products of one Mamba-2 layer.

Derived in docs/formulas/mamba.md. Sources: Dao and Gu, arXiv:2405.21060 (Mamba-2, section 6), and
`MambaMixer` of megatron-core 0.16.1.
"""

from __future__ import annotations

from steptally.job import Architecture, Job
from steptally.predict.count import Count
from steptally.predict.terms import Batch, Term, linear_term

# MambaMixer's defaults, which Megatron-LM has no flag for.
EXPANSION = 2
CONVOLUTION_WIDTH = 4
SCAN_CHUNK = 128


def mamba_inner_size(architecture: Architecture) -> int:
    """Channels of the state-space model: heads · head size, or twice the hidden size."""
    if architecture.mamba_num_heads is not None:
        return architecture.mamba_num_heads * architecture.mamba_head_dim
    return EXPANSION * architecture.hidden_size


def mamba_heads(architecture: Architecture) -> int:
    """Heads of the state-space model."""
    return mamba_inner_size(architecture) // architecture.mamba_head_dim


def mamba_convolution_channels(architecture: Architecture) -> int:
    """Channels of x, B and C, which go through the convolution together."""
    states = architecture.mamba_num_groups * architecture.mamba_state_dim
    return mamba_inner_size(architecture) + 2 * states


def recurrence_flops(tokens: Count, inner: Count, states: Count) -> Count:
    """5·T·d·N: the state h ← a·h + (Δ·x)Bᵀ costs 3 FLOPs an entry, the output y = h·C costs 2."""
    return 5 * tokens * inner * states


def chunked_scan_flops(
    tokens: Count, heads: Count, head_dim: Count, groups: Count, states: Count, chunk: Count
) -> Count:
    """What the chunked kernel multiplies: T·(2·Q·N·G + 2·Q·P·H + 4·N·P·H), chunks of Q tokens.

    C·Bᵀ inside a chunk, its product with x, the state that a chunk leaves, and its use by the next.
    """
    inside = 2 * chunk * (states * groups + head_dim * heads)
    return tokens * (inside + 4 * states * head_dim * heads)


def mamba_terms(job: Job, batch: Batch) -> list[Term]:
    """Input projection (z, x, B, C, Δ), convolution, scan, output projection.

    The scan's backward is counted as twice its forward.
    """
    architecture = job.architecture
    hidden, inner = architecture.hidden_size, mamba_inner_size(architecture)
    heads, states = mamba_heads(architecture), architecture.mamba_state_dim
    groups = architecture.mamba_num_groups
    executed_scan = chunked_scan_flops(
        batch.tokens, heads, architecture.mamba_head_dim, groups, states, SCAN_CHUNK
    )
    return [
        linear_term("mamba.in_proj", batch, hidden, 2 * inner + 2 * groups * states + heads),
        linear_term(
            "mamba.conv1d", batch, CONVOLUTION_WIDTH, mamba_convolution_channels(architecture)
        ),
        Term(
            "mamba.scan",
            recurrence_flops(batch.useful_tokens, inner, states),
            executed_scan,
            2 * executed_scan,
        ),
        linear_term("mamba.out_proj", batch, inner, hidden),
    ]
