"""Rows of the accounts that the search for stragglers fills: verdicts, waits, clocks, what-ifs.

Times are integer nanoseconds on the common clock; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERDICT_CLASSES = (
    "slow-worker",
    "stage-imbalance",
    "sequence-imbalance",
    "expert-hot-spot",
    "slow-link",
    "data-loading",
    "pause",
    "not-identifiable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """One cause of lost time, in coordinates; axes that are absent mean all of their ranks.

    `verdict` is one of `VERDICT_CLASSES`. `share_recovered` is the fraction of the lost time
    (step − ideal step) that comes back when it is mended (over 1 where mending it hides other
    delays too), `recovered_ns` the same per step; None where the recording has nothing to replay.
    `factor` is its time over its peers', `detectable` the least factor that this recording could
    tell from noise. `phase`: forward, backward, or empty for both.
    """

    verdict: str
    coordinates: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    host: str | None = None
    device: str | None = None
    share_recovered: float | None = None
    recovered_ns: int | None = None
    factor: float | None = None
    detectable: float | None = None
    phase: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTime:
    """One rank in one collective: when it entered and left, how long it waited, then moved data.

    wait = until the last member entered; transfer = from then on. `exposed_wait_ns` and
    `exposed_transfer_ns` are the parts in which the rank computed nothing.
    """

    rank: int
    entered_ns: int
    left_ns: int
    wait_ns: int
    transfer_ns: int
    exposed_wait_ns: int | None = None
    exposed_transfer_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One collective or message, over the members that were recorded.

    `last_to_enter` made the others wait (None where they enter together within the clock's bound),
    `enter_skew_ns` is last entered − first entered, `leave_skew_ns` the same of leaving: the test
    of pairing and of clocks. `missing` counts the members that were not recorded.
    """

    step: int
    group: str
    axis: str | None
    collective: str
    sequence: int
    bytes: int | None
    last_to_enter: int | None
    enter_skew_ns: int
    leave_skew_ns: int
    members: tuple[MemberTime, ...]
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow:
    """What one rank spent in one group's collectives over the recording, by wait and transfer."""

    rank: int
    group: str
    axis: str | None
    instances: int
    last_to_enter: int
    wait_ns: int
    transfer_ns: int
    exposed_wait_ns: int | None = None
    exposed_transfer_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """One rank's clock: common = own + `offset_ns` + `drift` · (own − `reference_ns`).

    `bound_ns` is how far a time of this rank may be off after that; `collectives` how many ends it
    rests on. `connected` is False for a rank that shares no usable collective with the others.
    """

    rank: int
    offset_ns: int
    drift: float
    bound_ns: int | None
    collectives: int
    connected: bool = True
    reference_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """One step, measured and replayed.

    `replayed_ns` comes from the recorded durations and launch delays, `undelayed_ns` from the
    durations alone, `ideal_ns` with every duration that of its peers; `error` is
    undelayed / measured − 1 and `slowdown` replayed / ideal.
    """

    step: int
    measured_ns: int
    replayed_ns: int
    undelayed_ns: int
    ideal_ns: int
    error: float
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """The step if one thing were as its peers: a worker, a stage, an operation kind, an axis.

    `what` is what is mended (`worker`, `stage`, `operation`, `dp`, …), `coordinates` or
    `operation` which one. `share_recovered` as in `VerdictRow`.
    """

    what: str
    coordinates: Mapping[str, int]
    operation: str
    mended_ns: int
    recovered_ns: int
    share_recovered: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """One rank's own time per step in one kind of operation, against its peers': a heat map's cell.

    `step` is None for the median over steps. `ratio` = own / peers, None where it has none.
    `against` tells which: `peers` (the median of the peer group), or `stages` (the mean of the
    other pipeline stages, each the lower quartile of its ranks).
    """

    rank: int
    coordinates: Mapping[str, int]
    operation: str
    step: int | None
    own_ns: int
    peers_ns: int | None
    ratio: float | None
    against: str = "peers"
