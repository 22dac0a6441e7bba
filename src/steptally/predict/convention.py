"""A convention: the named choices behind a count of useful FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steptally.job import Job
from steptally.predict.count import Count
from steptally.predict.terms import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What one source counts as the useful FLOPs of a step.

    By default every product of the model counts once forward and twice backward, attention on the
    exact causal pairs. `full_attention` counts S² pairs instead; `recompute` adds the layers that
    full recomputation runs again. A source that has a formula of its own gives it as `formula`, a
    function of the job and its tokens, which replaces all of that. `source` is the paper, or the
    repository and commit, that counts so.
    """

    name: str
    summary: str
    source: str
    full_attention: bool = False
    recompute: bool = False
    formula: Callable[[Job, Batch], Count] | None = None


EXACT_CAUSAL = Convention(
    name="exact-causal",
    summary=(
        "S(S+1)/2 pairs a head, exact pairs for windows, chunks and packed sequences, padded "
        "vocabulary, active experts, router and MTP counted, no recompute"
    ),
    source="steptally: docs/formulas/flops.md",
)
