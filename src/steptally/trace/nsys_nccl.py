"""Which NCCL communicator launched each kernel of an Nsight Systems export, where NVTX tells it.

NCCL marks its calls as NVTX ranges whose payload names the communicator; `nsys export
--include-json true` writes it as text. A kernel is of the communicator in whose call its launch
lies. Between ncclGroupStart and ncclGroupEnd the launch lies in the end of the group, which may
hold calls of several communicators: then nothing is said.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

import msgspec
import polars as pl

_DIGITS = re.compile(r"[0-9a-fA-Fx]+")


class Call(NamedTuple):
    """One call of NCCL's; `communicator` is None where it tells none."""

    start_ns: int
    end_ns: int
    name: str
    communicator: str | None


def communicator_of(payload: str | None) -> str | None:
    """The communicator that a payload's JSON names; digits may be grouped by commas."""
    try:
        told = msgspec.json.decode(payload or "")
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    for key, value in told.items():
        if "communicator" in key.lower():
            return "".join(_DIGITS.findall(str(value))) or None
    return None


def kernel_groups(work: pl.DataFrame, launches: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """The label of each row of `work` (correlation), null where no communicator is told.

    `launches` have correlation, thread and start_ns; `calls` thread, start_ns, end_ns, name and
    payload.
    """
    by_thread: dict[int, list[Call]] = defaultdict(list)
    ordered = calls.sort("start_ns").select("thread", "start_ns", "end_ns", "name", "payload")
    for thread, start, end, name, payload in ordered.iter_rows():
        by_thread[thread].append(Call(start, end, name, communicator_of(payload)))
    first = launches.unique("correlation", keep="first", maintain_order=True)
    placed = work.select("correlation").join(
        first.select("correlation", "thread", "start_ns"),
        on="correlation",
        how="left",
        maintain_order="left",
    )
    told = [
        _communicator(by_thread.get(thread, []), start) if start is not None else None
        for _, thread, start in placed.iter_rows()
    ]
    labels = [None if own is None else f"communicator {own}" for own in told]
    return pl.Series("group", labels, dtype=pl.String)


def _communicator(calls: list[Call], launched_ns: int) -> str | None:
    """The communicator of the call that a launch lies in."""
    place = bisect_right(calls, launched_ns, key=lambda call: call.start_ns) - 1
    if place < 0 or calls[place].end_ns < launched_ns:
        return None
    call = calls[place]
    if call.name != "ncclGroupEnd":
        return call.communicator
    grouped = set()
    for earlier in reversed(calls[:place]):
        if earlier.name == "ncclGroupStart":
            break
        if earlier.communicator is not None:
            grouped.add(earlier.communicator)
    return grouped.pop() if len(grouped) == 1 else None
