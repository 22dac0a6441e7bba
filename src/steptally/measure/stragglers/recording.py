"""What the search for stragglers needs of one rank's recording: small, and picklable.

Each rank's is made on its own (`extract`), in a process of its own where there are many; from
there on all ranks are looked at together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from steptally.trace.intervals import EMPTY, Intervals

# One row per collective or message that this rank took part in, in order of entering.
# enter_ns: the rank is there (a kernel starts, gloo's transfer is handed over); leave_ns: it is
# done. Both on the rank's own clock. `lane` is what runs its members one after the other: a stream,
# or a process group's queue. `collective` is one of COLLECTIVE_NAMES.
# `group` is the best name known (Megatron's), `axis` what it joins (tp, cp, ep, dp, pp, tp-cp …),
# `members` the global ranks, ascending; null where the recording does not tell.
# `bytes` is the larger of what goes in and comes out of the rank, where the recording tells.
# `sequence` counts a group's calls, equal on all members; null where it is not recorded.
COMMUNICATIONS: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),
    "lane": pl.String(),
    "collective": pl.String(),
    "group": pl.String(),
    "axis": pl.String(),
    "members": pl.List(pl.Int32()),
    "sequence": pl.Int64(),
    "source_rank": pl.Int64(),
    "destination_rank": pl.Int64(),
    "bytes": pl.Int64(),
    "bytes_in": pl.Int64(),
    "bytes_out": pl.Int64(),
    "enter_ns": pl.Int64(),
    "leave_ns": pl.Int64(),
}

COLLECTIVE_NAMES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "copy",  # to another device by a copy engine: nobody enters it on the other side
    "send-recv",  # a fused exchange, as NCCL's SendRecv kernel: direction and peer are not told
    "unknown",
)

STEPS: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecording:
    """One rank's part: its collectives, its own work, its steps, all on its own clock.

    `steps` are the whole steps (`STEPS`), one row (step 0) over everything where none are told.
    `compute` is the union of its computing intervals (kernels, or a CPU's operators). `coordinates`
    are the rank's places on the parallel axes, as far as they are known ({"tp": 0, "pp": 1}).
    `backward` are the runs of backward passes, `model_begins` is when each step's model begins
    (after batches are loaded); both empty where nothing tells. `lost` says what of the recording is
    missing (`12 kernels have no launch`), so that pairing can be refused.
    """

    rank: int
    source: str
    communications: pl.DataFrame
    steps: pl.DataFrame
    compute: Intervals = field(default_factory=lambda: EMPTY)
    backward: Intervals = field(default_factory=lambda: EMPTY)
    model_begins: Mapping[int, int] = field(default_factory=dict)
    world_size: int | None = None
    host: str | None = None
    device: str | None = None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
