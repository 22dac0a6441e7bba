"""A convention: the named choices behind a count of useful FLOPs."""

from __future__ import annotations

from dataclasses import dataclass, field

ATTENTION_PAIRS = ("causal", "half", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What one source counts as the useful FLOPs of a step.

    `attention` says which query-key pairs of a sequence of S tokens count: `causal` S(S+1)/2,
    `half` S²/2, `full` S². `source` is the paper, or the repository and commit, that counts so.
    """

    name: str
    summary: str
    source: str
    attention: str = field(default="causal", metadata={"choices": ATTENTION_PAIRS})


EXACT_CAUSAL = Convention(
    name="exact-causal",
    summary=(
        "S(S+1)/2 pairs a head, exact pairs for windows, chunks and packed sequences, padded "
        "vocabulary, active experts, router and MTP counted, no recompute"
    ),
    source="steptally: docs/formulas/flops.md",
)
