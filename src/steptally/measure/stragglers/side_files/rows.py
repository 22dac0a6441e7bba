"""What side files tell: findings of one severity each, and the samples that they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

SEVERITIES = ("fault", "notable", "healthy")
SUBJECTS = ("gpu", "nic", "numa", "experts")

# One row per reading of one GPU; what a source does not tell is null. `reasons` is NVML's bit mask
# of what holds clocks down (throttle.py). Counters are as read: since boot, reset or driver load.
GPU_SAMPLES: Mapping[str, pl.DataType] = {
    "source": pl.String(),
    "host": pl.String(),
    "index": pl.Int64(),
    "uuid": pl.String(),
    "bus_id": pl.String(),
    "time": pl.String(),
    "sm_mhz": pl.Float64(),
    "sm_max_mhz": pl.Float64(),
    "power_w": pl.Float64(),
    "power_limit_w": pl.Float64(),
    "temperature_c": pl.Float64(),
    "slowdown_c": pl.Float64(),
    "utilization_percent": pl.Float64(),
    "reasons": pl.Int64(),
    "ecc_corrected": pl.Float64(),
    "ecc_uncorrected": pl.Float64(),
    "xid": pl.Float64(),
    "pcie_replays": pl.Float64(),
    "nvlink_errors": pl.Float64(),
    "nvlink_recoveries": pl.Float64(),
}
TEXTS = ("source", "host", "uuid", "bus_id", "time")

EXPERT_TOKENS: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),
    "layer": pl.Int64(),
    "expert": pl.Int64(),
    "rank": pl.Int64(),
    "tokens": pl.Float64(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFinding:
    """One thing that one side file tells of one GPU, NIC, rank or expert.

    `severity` is one of `SEVERITIES`: a fault of hardware, something notable that may or may not
    slow the rank, or a statement that nothing was found. Coordinates that are not told are None.
    `first` and `last` are the times of the readings meant, as the file writes them.
    """

    severity: str
    subject: str
    sentence: str
    source: str
    host: str | None = None
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    bus_id: str | None = None
    device: str | None = None
    rank: int | None = None
    first: str | None = None
    last: str | None = None

    def told(self) -> str:
        """The sentence with what it is about, its file, and the times of the readings.

        >>> hot = {"severity": "fault", "subject": "gpu", "sentence": "too hot", "source": "g.csv"}
        >>> SideFinding(**hot, host="node1", gpu_index=3).told()
        'GPU 3 on node1: too hot (g.csv)'
        """
        gpu = self.gpu_uuid or self.bus_id if self.gpu_index is None else self.gpu_index
        names = []
        if self.rank is not None:
            names.append(f"rank {self.rank}")
        elif gpu is not None:
            names.append(f"GPU {gpu}")
        if self.device:
            names.append(self.device)
        if self.host:
            names.append(f"on {self.host}")
        about = " ".join(names)
        times = [time for time in (self.first, self.last) if time]
        when = f", {' to '.join(dict.fromkeys(times))}" if times else ""
        head = f"{about}: " if about and self.subject != "experts" else ""
        return f"{head}{self.sentence} ({Path(self.source).name}{when})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFindings:
    """All findings of some files, faults first; `lost` counts what could not be read.

    `gpu_samples` (`GPU_SAMPLES`) and `expert_tokens` (`EXPERT_TOKENS`) are the readings.
    """

    findings: tuple[SideFinding, ...] = ()
    lost: tuple[str, ...] = ()
    gpu_samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GPU_SAMPLES))
    expert_tokens: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EXPERT_TOKENS))


class GpuRows:
    """Collects readings of GPUs column by column: a day of one a second is 700,000 rows."""

    def __init__(self, source: str, host: str | None = None) -> None:
        self.lost = 0
        self._source = source
        self._host = host
        self._columns: dict[str, list[Any]] = {name: [] for name in GPU_SAMPLES}

    def __len__(self) -> int:
        return len(self._columns["source"])

    def add(self, values: Mapping[str, Any]) -> None:
        """One reading; its own host comes before that of the file."""
        for name, column in self._columns.items():
            column.append(values.get(name))
        self._columns["source"][-1] = self._source
        self._columns["host"][-1] = values.get("host") or self._host

    def frame(self) -> pl.DataFrame:
        """The readings so far, as `GPU_SAMPLES`."""
        return pl.DataFrame(self._columns, schema=GPU_SAMPLES, strict=False)
