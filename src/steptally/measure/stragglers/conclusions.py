"""What a search for stragglers concludes from one source, with or without a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptally.tally.straggler_rows import VerdictRow

# A cause that costs less of the step than the first is not named; the second is critical. The
# bounds are TraceML's (traceopt-ai/traceml#253): docs/stragglers-inputs.md argues for them.
WARN_SHARE = 0.10
CRITICAL_SHARE = 0.20
# A pause at a fixed period is named from this share of the time on: it is cheap to mend.
PAUSE_SHARE = 0.01
# What a cause must explain of the wait before it is named (same source).
CAUSE_COVERAGE = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """Verdicts of one source; where there are none, `notes` say why, in numbers.

    `detectable` is the least factor on the step time that this source could have told from noise,
    None where it does not say. `peers_compared`: ranks were held against each other. `lost` counts
    what of the input was not used, and why.
    """

    verdicts: tuple[VerdictRow, ...] = ()
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    detectable: float | None = None
    peers_compared: bool = False


def join_conclusions(parts: Iterable[Conclusions]) -> Conclusions:
    """Several sources' conclusions as one: nothing is weighed, `detectable` is the finest."""
    found = list(parts)
    detectable = [part.detectable for part in found if part.detectable is not None]
    return Conclusions(
        verdicts=tuple(verdict for part in found for verdict in part.verdicts),
        notes=tuple(note for part in found for note in part.notes),
        lost=tuple(loss for part in found for loss in part.lost),
        detectable=min(detectable, default=None),
        peers_compared=any(part.peers_compared for part in found),
    )


def impact_word(share: float) -> str:
    """How bad a share of the step is, with the bound that it passed.

    >>> impact_word(0.25)
    'critical (20 % or more)'
    """
    if share >= CRITICAL_SHARE:
        return f"critical ({CRITICAL_SHARE:.0%} or more)".replace("%", " %")
    if share >= WARN_SHARE:
        return f"a warning ({WARN_SHARE:.0%} or more)".replace("%", " %")
    return f"below {WARN_SHARE:.0%}".replace("%", " %")


def section_names(names: Iterable[str]) -> str:
    """Sections as text, the first four of many.

    >>> section_names(["forward", "backward"])
    '`forward`, `backward`'
    """
    listed = [f"`{name}`" for name in names]
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return ", ".join(listed[:4]) + more


def percent(share: float) -> str:
    """A share as text.

    >>> percent(0.274)
    '27.4 %'
    """
    return f"{100 * share:.1f} %"
