"""The verdicts of a search for stragglers in words: what, where, what mending it brings back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from steptally.report.quantity import duration, printable, quantity, ranges
from steptally.tally import Tally, VerdictRow

# (what it is called, what it means) of each class.
CLASSES = {
    "slow-worker": ("slow worker", "its own work takes longer than its peers'"),
    "stage-imbalance": ("stage imbalance", "a pipeline stage has more work than the others"),
    "sequence-imbalance": ("sequence imbalance", "micro-batches hold unequal work"),
    "expert-hot-spot": ("expert hot spot", "its experts have more work than the others'"),
    "slow-link": ("slow link", "its communication takes longer than its peers'"),
    "data-loading": ("data loading", "it starts its step late, when its batch is there"),
    "pause": ("pause", "work stands still now and then (garbage collection, checkpoint)"),
    "not-identifiable": ("not identifiable", "this recording does not tell the cause"),
}
# What a factor is over, of the classes where it is not over peers' time.
AGAINST = {
    "stage-imbalance": "the other stages' time",
    "sequence-imbalance": "a usual micro-batch's time",
    "pause": "what it would be without",
}
# Above this share, mending one cause hides other delays too, and that is said.
WHOLE = 1.005
# Pipeline stage and replica first: peers are ranks of one stage.
AXES = ("pp", "dp", "cp", "ep", "tp")
MOST_RUNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCard:
    """One verdict in words; `recovers` and `factor` are empty where they are not known."""

    name: str
    meaning: str
    place: str
    recovers: str
    factor: str
    evidence: tuple[str, ...]


def verdict_cards(tally: Tally) -> list[VerdictCard]:
    """One card a verdict, in the tally's order: the one that recovers most first."""
    rows = tally.accounts.get("verdicts", ())
    return [_card(row) for row in rows if isinstance(row, VerdictRow)]


def looked_for_stragglers(tally: Tally) -> bool:
    """Whether the tally is of a search for stragglers, whatever it found."""
    return "verdicts" in tally.accounts


def no_straggler(tally: Tally) -> str:
    """What it means that no verdict is there: how slow a rank could be and not be told."""
    found = "No straggler found: nothing stands out from its peers and shortens the step if mended."
    least = tally.summary.get("detectable_factor")
    if least is None or not isinstance(least.value, int | float):
        return f"{found} How small an effect this recording would show is not known."
    convention = f" ({printable(least.convention)})" if least.convention else ""
    return (
        f"{found} A rank that takes less than {times(least.value)} its peers' time would not be "
        f"told from noise in this recording{convention}."
    )


def _card(row: VerdictRow) -> VerdictCard:
    name, meaning = CLASSES.get(row.verdict, (printable(row.verdict), ""))
    return VerdictCard(
        name=name,
        meaning=meaning,
        place=place_in_words(row.coordinates, row.ranks, row.host, row.device),
        recovers=_recovers(row),
        factor=_factor(row),
        evidence=tuple(printable(sentence) for sentence in row.evidence),
    )


def place_in_words(
    coordinates: Mapping[str, int],
    ranks: Collection[int],
    host: str | None = None,
    device: str | None = None,
) -> str:
    """`pp 0, dp 0 · rank 0 · host node1 · device cuda:3`; no coordinate means every rank's.

    >>> place_in_words({"dp": 1, "pp": 0}, (4, 5, 6), "node1")
    'pp 0, dp 1 · ranks 4–6 · host node1'
    """
    axes = in_words(coordinates)
    parts = [axes] if axes else []
    if ranks:
        parts.append(f"rank{'s' * (len(set(ranks)) != 1)} {_few_ranges(ranks)}")
    if not parts:
        parts.append("all ranks")
    parts += [f"host {printable(host)}"] if host else []
    parts += [f"device {printable(device)}"] if device else []
    return " · ".join(parts)


def in_words(coordinates: Mapping[str, int]) -> str:
    """Coordinates in the order that reports use, `pp 0, dp 1`; empty for none."""
    return ", ".join(f"{printable(axis)} {coordinates[axis]}" for axis in ordered(coordinates))


def ordered(axes: Collection[str]) -> list[str]:
    """Names of axes in the order that reports use: pp, dp, cp, ep, tp, then any other."""
    return [axis for axis in AXES if axis in axes] + sorted(set(axes) - set(AXES))


def times(factor: float) -> str:
    """A factor as people read it.

    >>> times(1.9731), times(1.04), times(23.4)
    ('1.97×', '1.04×', '23.4×')
    """
    return f"{factor:.2f}×" if abs(factor) < 10 else f"{factor:,.1f}×"


def _few_ranges(ranks: Collection[int]) -> str:
    runs = ranges(ranks).split(", ")
    if len(runs) <= MOST_RUNS:
        return ", ".join(runs)
    return f"{', '.join(runs[:MOST_RUNS])}, … ({len(set(ranks)):,} in all)"


def _recovers(row: VerdictRow) -> str:
    if row.share_recovered is None and row.recovered_ns is None:
        return ""
    if row.recovered_ns is None:
        return f"mending it recovers {quantity(row.share_recovered, '1')} of the lost time"
    a_step = f"{duration(row.recovered_ns)} a step"
    if row.share_recovered is None:
        return f"mending it recovers {a_step}"
    words = f"mending it recovers {quantity(row.share_recovered, '1')} of the lost time, {a_step}"
    more = ": it hides other delays too" if row.share_recovered > WHOLE else ""
    return words + more


def _factor(row: VerdictRow) -> str:
    against = AGAINST.get(row.verdict, "its peers' time")
    words = [f"{times(row.factor)} {against}"] if row.factor is not None else []
    if row.detectable is not None:
        words.append(f"told from noise from {times(row.detectable)} up")
    if row.phase:
        words.append(f"in {printable(row.phase)} only")
    return "; ".join(words)
