"""How many query-key pairs one attention head looks at: the quadratic part of a step.

Exact integers; S is a sequence's length in tokens. Derived in docs/formulas/attention_pairs.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptally.predict.count import Count
from steptally.predict.layers import LayerKind


def full_pairs(seq: Count) -> Count:
    """S²: each query against each key, what an unfused attention computes."""
    return seq * seq


def causal_pairs(seq: Count) -> Count:
    """S(S+1)/2: each query against itself and the keys before it.

    >>> causal_pairs(2048)
    2098176
    """
    return seq * (seq + 1) // 2


def window_pairs(seq: Count, window: Count) -> Count:
    """W(W+1)/2 + (S−W)W: each query against the last W keys, itself included.

    >>> window_pairs(2048, 512)
    917760
    """
    if window >= seq:
        return causal_pairs(seq)
    return causal_pairs(window) + (seq - window) * window


def chunk_pairs(seq: Count, chunk: Count, window: Count | None = None) -> Count:
    """⌊S/C⌋ blocks of C(C+1)/2, and what is left: attention that stays inside blocks of C.

    A `window` narrows it further inside each block.

    >>> chunk_pairs(2048, 256)
    263168
    """
    blocks, rest = divmod(seq, chunk)
    return blocks * window_pairs(chunk, window or chunk) + window_pairs(rest, window or chunk)


def visible_pairs(kind: LayerKind, lengths: Sequence[int]) -> int:
    """Exact pairs of one head of a layer, over the documents of one packed sequence."""
    if kind.chunk is not None:
        return sum(chunk_pairs(length, kind.chunk, kind.window) for length in lengths)
    if kind.window is not None:
        return sum(window_pairs(length, kind.window) for length in lengths)
    return sum(causal_pairs(length) for length in lengths)
