"""Which ranks read one clock: those of one host, unless their own collectives contradict it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from steptally.measure.stragglers.collective_names import LEAVE_APART, LEAVE_TOGETHER, MESSAGES
from steptally.measure.stragglers.instances import Pairing
from steptally.measure.stragglers.recording import RankRecording
from steptally.tally.ranges import number_ranges

# How well the processes of one kernel agree on its time, where nothing contradicts.
ONE_CLOCK_NS = 1_000
# Beyond this a rank that left before another entered did not read the same clock.
_IMPOSSIBLE_NS = 20_000
_MOST_IMPOSSIBLE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadClocks:
    """`place` is the clock that each rank reads, from 0; `shared` are those of several ranks."""

    place: Mapping[int, int]
    shared: frozenset[int]
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many clocks there are."""
        return len(set(self.place.values()))


def clocks_read(recordings: Sequence[RankRecording], pairing: Pairing) -> ReadClocks:
    """One clock for the ranks of each host that was recorded, and one for each other rank.

    Where a rank had left a collective before another rank of its host entered it, by the times as
    recorded, they do not read one clock, whatever the host is called: then each has its own, and a
    warning says so.
    """
    hosts: dict[str, list[int]] = defaultdict(list)
    for one in recordings:
        if one.host is not None:
            hosts[one.host].append(one.rank)
    host_of = {rank: host for host, ranks in hosts.items() if len(ranks) > 1 for rank in ranks}
    warnings = []
    for host, impossible, count in _impossible(pairing, host_of):
        ranks = sorted(hosts[host])
        host_of = {rank: own for rank, own in host_of.items() if own != host}
        warnings.append(
            f"ranks {number_ranges(ranks)} are said to run on {host}, but in {impossible} of "
            f"{count} of their collectives one had left before another entered: they do not read "
            "one clock, and are aligned each by its own"
        )
    places: dict[str | int, int] = {}
    place = {}
    for rank in sorted(one.rank for one in recordings):
        place[rank] = places.setdefault(host_of.get(rank, rank), len(places))
    shared = frozenset(place[rank] for rank in host_of)
    return ReadClocks(place=place, shared=shared, warnings=tuple(warnings))


def _impossible(pairing: Pairing, host_of: Mapping[int, str]) -> list[tuple[str, int, int]]:
    """Hosts whose times cannot be of one clock: name, impossible collectives, all of them."""
    host = pl.col("rank").replace_strict(dict(host_of), default=None, return_dtype=pl.String)
    kinds = (*LEAVE_TOGETHER, *LEAVE_APART, *MESSAGES)
    rows = pairing.members.filter(pl.col("collective").is_in(kinds)).with_columns(host=host)
    sends, receives = pl.col("collective") == "send", pl.col("collective") == "recv"
    collective = pl.col("enter_ns").max() - pl.col("leave_ns").min()
    message = pl.col("enter_ns").filter(sends).max() - pl.col("leave_ns").filter(receives).min()
    each = (
        rows.filter(pl.col("host").is_not_null())
        .group_by("instance", "host")
        .agg(
            late=pl.when(pl.col("collective").is_in(MESSAGES).any())
            .then(message)
            .otherwise(collective)
        )
        .drop_nulls("late")
    )
    table = each.group_by("host").agg(
        impossible=(pl.col("late") > _IMPOSSIBLE_NS).sum(), count=pl.len()
    )
    bad = table.filter(pl.col("impossible") > _MOST_IMPOSSIBLE * pl.col("count")).sort("host")
    return list(bad.iter_rows())
