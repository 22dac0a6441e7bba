"""What makes two rows of two searches for stragglers the same line; see `identities`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from steptally.tally.identity import Entry, Identity, Quantity, entry_of


def _ns(*names: str, combine: Any = "median") -> tuple[Quantity, ...]:
    return tuple(Quantity(name=name, unit="ns", combine=combine) for name in names)


def placed(rows: Sequence[Any]) -> Iterable[Entry]:
    """The rows with their coordinates as one text, so that a place is a key."""
    return ({**entry_of(row), "coordinates": _place(row.coordinates)} for row in rows)


def over_steps(rows: Sequence[Any]) -> Iterable[Entry]:
    """The cells of a heat map that are over all steps."""
    return placed([row for row in rows if row.step is None])


def _place(coordinates: Any) -> str:
    return ", ".join(f"{axis} {at}" for axis, at in sorted(coordinates.items())) or "all"


STRAGGLER_IDENTITIES: dict[str, tuple[Identity, ...]] = {
    "verdicts": (
        Identity(
            keys=("verdict", "coordinates"),
            quantities=(*_ns("recovered_ns"), Quantity(name="factor", unit="×", combine="max")),
            words=("phase",),
            left_out=("ranks", "host", "device", "share_recovered", "detectable", "evidence"),
            absent_is_zero=False,
            entries=placed,
        ),
    ),
    "replay": (
        Identity(
            keys=(),
            quantities=_ns("measured_ns", "replayed_ns", "undelayed_ns", "ideal_ns"),
            left_out=("step", "error", "slowdown"),
            absent_is_zero=False,
        ),
    ),
    "what_if": (
        Identity(
            keys=("what", "coordinates", "operation"),
            quantities=_ns("recovered_ns", "mended_ns"),
            left_out=("share_recovered",),
            absent_is_zero=False,
            entries=placed,
        ),
    ),
    "peers": (
        Identity(
            keys=("rank", "operation", "against"),
            quantities=_ns("own_ns"),
            left_out=("coordinates", "step", "peers_ns", "ratio"),
            absent_is_zero=False,
            entries=over_steps,
            entries_note="medians over the steps, not each step",
        ),
    ),
    "waits": (
        Identity(
            keys=("rank", "group"),
            quantities=(
                *_ns("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns"),
                Quantity(name="instances", unit="call"),
                Quantity(name="last_to_enter", unit="call"),
            ),
            words=("axis",),
        ),
    ),
    "collectives": (
        Identity(
            keys=("group", "axis", "collective"),
            quantities=_ns("enter_skew_ns", "leave_skew_ns"),
            left_out=("step", "sequence", "bytes", "last_to_enter", "members", "missing"),
            absent_is_zero=False,
        ),
    ),
    "clock": (
        Identity(
            keys=("rank",),
            quantities=_ns("offset_ns", "bound_ns"),
            left_out=("drift", "collectives", "connected", "reference_ns"),
            absent_is_zero=False,
        ),
    ),
}
