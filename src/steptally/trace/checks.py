"""What a reader notices about a recording and cannot decide: said as warnings, never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from steptally.trace.kinds import Rules

_MOST_NAMED = 5


def suspect_kernels(path: Path, events: pl.DataFrame, rules: Rules) -> Iterator[str]:
    """A sentence for the kernels that are counted as compute and named like communication."""
    compute = events.filter(pl.col("kind") == "compute")
    found = [name for name in compute["name"].unique() if rules.looks_like_communication(name)]
    if not found:
        return
    own = compute.filter(pl.col("name").is_in(found))
    time_ns = int((own["end_ns"] - own["start_ns"]).sum())
    named = sorted(found)[:_MOST_NAMED]
    shown = ", ".join(repr(name if len(name) <= 60 else f"{name[:57]}...") for name in named)
    more = f" and {len(found) - len(named)} more names" if len(found) > len(named) else ""
    yield (
        f"{path}: {len(own):,} kernels of {time_ns / 1e6:,.3f} ms are named like communication and "
        f"known to no rule, so they count as compute: {shown}{more}. Tell their kind in a rule "
        "file ([[kind]], as in steptally/trace/kinds.toml)."
    )
