"""Where a job runs: which accelerator, how many share a node, how fast they reach each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The device, how devices are grouped, and their links; None is what nobody stated.

    `device` is a catalogue name. Bandwidths are bytes/s of one device in one direction:
    `intra_node_bandwidth_bytes_per_s` inside its link domain, `inter_node_bandwidth_bytes_per_s`
    to the network. `link_domain_size` is how many devices reach each other over the fast link: the
    node, or a whole rack (72 for NVL72). `job.resolve` takes what is not stated from the device.
    """

    device: str | None = None
    devices_per_node: int = 8
    nodes: int | None = None
    link_domain_size: int | None = None
    intra_node_bandwidth_bytes_per_s: float | None = None
    inter_node_bandwidth_bytes_per_s: float | None = None
