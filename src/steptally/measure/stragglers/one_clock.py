"""From the recordings of several ranks to one clock and the collectives that hold on it.

together = on_one_clock(recordings)
rows = waits(recordings, together.pairing, together.clocks)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptally.measure.stragglers.clock import Clocks, align
from steptally.measure.stragglers.instances import Pairing, pair
from steptally.measure.stragglers.pairing_support import supported, without_shifted
from steptally.measure.stragglers.recording import RankRecording
from steptally.tally.ranges import number_ranges

# What is refused changes the clocks, which may contradict more; it settles at once or not at all.
_MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Clocks, the pairing that holds on them, and what to say of both."""

    clocks: Clocks
    pairing: Pairing
    warnings: tuple[str, ...] = ()


def on_one_clock(recordings: Sequence[RankRecording]) -> Together:
    """Pair the collectives, align the clocks by them, and refuse what the ends do not support."""
    pairing = without_shifted(pair(recordings))
    clocks = align(recordings, pairing)
    for _ in range(_MOST_ROUNDS):
        kept = supported(pairing, clocks)
        if len(kept.members) == len(pairing.members):
            break
        pairing = kept
        clocks = align(recordings, pairing)
    return Together(
        clocks=clocks,
        pairing=pairing,
        warnings=(*clocks.warnings, *_unconnected(clocks), *_lost(recordings)),
    )


def _unconnected(clocks: Clocks) -> list[str]:
    apart = [rank for rank, row in clocks.rows.items() if not row.connected]
    if not apart or len(clocks.rows) == 1:
        return []
    text = (
        f"ranks {number_ranges(apart)} share no collective with the others: their clocks cannot "
        "be compared, and their times are their own"
    )
    return [text]


def _lost(recordings: Sequence[RankRecording]) -> list[str]:
    return [
        f"rank {one.rank}: {lost}"
        for one in sorted(recordings, key=lambda one: one.rank)
        for lost in one.lost
    ]
