"""Ranks of one host read one clock: what the collectives say of it is a measure, no correction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low
from typing import TYPE_CHECKING

from steptally.measure.stragglers.recording import RankRecording
from steptally.tally.ranges import number_ranges
from steptally.tally.straggler_rows import ClockRow

if TYPE_CHECKING:
    from steptally.measure.stragglers.clock import Clocks

# Clocks that differ by more than this beyond their bounds are not one, whatever the host's name.
_LEAST_DIFFERENCE_NS = 20_000
# How well the processes of one kernel agree on its time, where collectives do not contradict.
ONE_CLOCK_NS = 1_000


def share_hosts(recordings: Sequence[RankRecording], clocks: Clocks) -> Clocks:
    """The clocks, with one for all ranks of each host; `host` None is nobody's.

    The host's is that of its median rank. How far a rank's own lies from it is its bound, where
    that is more than the measure's own. Where they differ by more than their bounds explain, the name is shared and the clock is not:
    then each keeps its own, and a warning says so.
    """
    hosts: dict[str, list[int]] = defaultdict(list)
    for one in recordings:
        if one.host is not None:
            hosts[one.host].append(one.rank)
    rows, warnings = dict(clocks.rows), list(clocks.warnings)
    single = len(hosts) == 1 and all(one.host for one in recordings)
    for host, ranks in sorted(hosts.items()):
        known = [rows[rank] for rank in sorted(ranks) if rows[rank].connected]
        far = _far_apart(known)
        if far:
            warnings.append(
                f"ranks {number_ranges(far)} are said to run on {host}, but their clocks are not "
                "those of its other ranks: they are aligned each by its own"
            )
        elif known:
            rows |= {rank: _shared(rows[rank], known, single) for rank in ranks}
        elif single:
            rows |= {
                rank: replace(rows[rank], bound_ns=ONE_CLOCK_NS, connected=True) for rank in ranks
            }
    return replace(clocks, rows=dict(sorted(rows.items())), warnings=tuple(warnings))


def _far_apart(known: Sequence[ClockRow]) -> list[int]:
    if not known:
        return []
    middle = median_low(row.offset_ns for row in known)
    return [
        row.rank
        for row in known
        if abs(row.offset_ns - middle) > 3 * (row.bound_ns or 0) + _LEAST_DIFFERENCE_NS
    ]


def _shared(row: ClockRow, known: Sequence[ClockRow], single: bool) -> ClockRow:
    """The row on its host's clock; `single` where there is no other host to compare with."""
    middle = median_low(one.offset_ns for one in known)
    drift = median_low(one.drift for one in known)
    of_host = 0 if single else median_low(one.bound_ns or 0 for one in known)
    apart = abs(row.offset_ns - middle) if row.connected else 0
    contradicts = apart > (row.bound_ns or 0)
    return replace(
        row,
        offset_ns=0 if single else middle,
        drift=0.0 if single else drift,
        bound_ns=(max(apart, ONE_CLOCK_NS) if contradicts else ONE_CLOCK_NS) + of_host,
        connected=True,
    )
