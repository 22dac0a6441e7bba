"""Where a job runs: which accelerator, and how many of them share a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The device's catalogue name (None: not stated) and the number of devices in a node."""

    device: str | None = None
    devices_per_node: int = 8
