"""What a recording cannot be believed in: each test is measured, and spoilt results are named.

A row is `good`, `noted` (no result suffers), `downgraded` (the results it affects are bounds or
estimates) or `refused` (they are not concluded from). Here are the tests of files and of the set of
ranks; those of a device's work are in `device_trust`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from steptally.tally import TrustRow
from steptally.trace.intervals import merge, total
from steptally.trace.schema import Trace

# What part of the device's work, or of its busy time, may be bad before results are …
DOWNGRADED_FROM = 0.01
REFUSED_FROM = 0.2

GOOD, NOTED, DOWNGRADED, REFUSED = "good", "noted", "downgraded", "refused"
BUSY_BASED = "busy, idle, compute, communication, overlap, exposed"


def file_trust(trace: Trace, rank: int) -> list[TrustRow]:
    """The tests of a rank's file, whatever it records."""
    return [_losses(trace, rank), _overhead(trace, rank)]


def subset_trust(
    read: Sequence[int], world_size: int | None, members: Mapping[str, set[int]]
) -> TrustRow:
    """Whether all ranks of a job were read, and what those that were not could tell.

    `members` are those that the traces tell of each process group, of all groups of one name.
    """
    size = world_size or len(read)
    missing = max(0, size - len(read))
    verb = "is" if len(read) == 1 else "are"
    finding = f"{len(read):,} of {size:,} ranks {verb} read"
    if missing:
        finding += (
            ": whether communication waits for the others is not seen, nor whether they are slower"
        )
        cut = sorted(name for name, ranks in members.items() if not ranks <= set(read))
        if cut:
            finding += f"; members of {', '.join(cut)} are among them"
    elif world_size is None:
        finding = (
            f"{len(read):,} rank{'s' * (len(read) != 1)} {verb} read; nothing says of how many"
        )
    return TrustRow(
        rank=None,
        check="ranks read",
        count=len(read),
        of=size,
        verdict=NOTED if missing or world_size is None else GOOD,
        finding=finding,
        affects="sums and extremes over the job" if missing else "",
    )


def spoils_busy(rows: Iterable[TrustRow]) -> list[str]:
    """Why the shares of a rank's time are refused; empty where they are not."""
    return [row.finding for row in rows if row.verdict == REFUSED and row.affects == BUSY_BASED]


def _losses(trace: Trace, rank: int) -> TrustRow:
    """What the file lost: parts of it that could not be read, events that make no sense."""
    events = sum(loss.events for loss in trace.losses)
    size_bytes = sum(loss.size_bytes for loss in trace.losses)
    finding = "; ".join(loss.sentence() for loss in trace.losses) or "every event was read"
    return TrustRow(
        rank=rank,
        check="losses",
        count=events,
        of=events + len(trace.events),
        verdict=DOWNGRADED if events or size_bytes or trace.losses else GOOD,
        finding=finding,
        affects="everything: what was lost is missing from it" if trace.losses else "",
    )


def _overhead(trace: Trace, rank: int) -> TrustRow:
    """The profiler's own work on the host, and how much of it stands inside recorded steps."""
    own = trace.events.filter(pl.col("kind") == "instrument")
    duration_ns = total(merge(own["start_ns"].to_numpy(), own["end_ns"].to_numpy()))
    return TrustRow(
        rank=rank,
        check="profiler overhead",
        count=len(own),
        of=len(trace.events),
        verdict=NOTED if len(own) else GOOD,
        finding=f"{len(own):,} events of the profiler itself, {duration_ns / 1e6:.3f} ms of host "
        "time",
        affects="gaps waiting for the host" if len(own) else "",
        duration_ns=duration_ns,
    )


def judged(
    rank: int,
    check: str,
    count: int,
    of: int,
    finding: str,
    affects: str,
    *,
    share: float | None = None,
    duration_ns: int = 0,
    refuses: bool = True,
) -> TrustRow:
    """A row whose verdict follows from the share of what is bad."""
    part = (count / of if of else 0.0) if share is None else share
    verdict = GOOD if not count else NOTED
    if part >= DOWNGRADED_FROM:
        verdict = REFUSED if refuses and part >= REFUSED_FROM else DOWNGRADED
    return TrustRow(
        rank=rank,
        check=check,
        count=count,
        of=of,
        verdict=verdict,
        finding=finding,
        affects=affects if verdict in (DOWNGRADED, REFUSED) else "",
        duration_ns=duration_ns,
    )
